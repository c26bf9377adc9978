"""Oracle: a recorded run, audited with the same attacks and targets, gives the run's figures.

One run for each kind of things that attacks recover; to the bit.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import scenario
from recorded import record_run
from unit.attacks.test_sessions import make_scenario as make_sessions

from simsplit import audit
from simsplit.errors import SimsplitError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.scenario import Scenario
from simsplit.wires.transcript import Transcript

pytestmark = pytest.mark.slow

ON_IMAGES: list[dict[str, Any]] = [
    {"kind": "fora"},
    {"kind": "ridge", "pairs": 16},
    {"kind": "spectral"},
    {"kind": "norm"},
]
ON_ROWS: list[dict[str, Any]] = [{"kind": "ridge", "pairs": 16}]
ON_SESSIONS: list[dict[str, Any]] = [{"kind": "mc"}]
RECOVERED = {"fora": "images", "ridge": "rows", "norm": "labels", "mc": "sessions"}


def make_images() -> Scenario:
    return scenario(
        data={"auxiliary": 0.3, "classes": ["3", "8"], "train_samples": 60},
        clients={"count": 1},
        schedule={"kind": "round_robin", "rounds": 1},
        targets={"count": 20},
        attacks=ON_IMAGES,
    )


def make_rows() -> Scenario:
    return scenario(
        data={"source": {"kind": "sklearn", "name": "iris"}, "auxiliary": 0.4},
        model={"kind": "mlp", "widths": [8, 8, 8], "head": 1, "tail": 1},
        clients={"count": 1},
        schedule={"kind": "round_robin", "rounds": 1},
        targets={"count": 12},
        attacks=ON_ROWS,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("recorded")
    sessions = make_sessions(folder, *ON_SESSIONS)
    given = {"images": make_images(), "rows": make_rows(), "sessions": sessions}
    for name in given:
        (folder / name).mkdir()
    return {name: record_run(each, folder / name) for name, each in given.items()}


CASES = [
    *(("images", fields) for fields in ON_IMAGES),
    *(("rows", fields) for fields in ON_ROWS),
    *(("sessions", fields) for fields in ON_SESSIONS),
]


def test_there_is_a_case_of_each_kind() -> None:
    assert {"images", "rows", "labels", "sessions"} == {*RECOVERED.values()}


@pytest.mark.parametrize(("name", "fields"), CASES, ids=lambda value: str(value)[:20])
def test_a_recorded_run_is_read_as_it_was_in_the_run(
    recorded: dict[str, tuple[Path, Path]], tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    run, wire = recorded[name]
    made = audit(wire, tmp_path / "audit", knows={"run": run}, attacks=[fields], budget=1e9)
    theirs, ours = (_select(each, fields["kind"]) for each in (Run.load(run), made.run))
    assert len(ours) > 0
    # A column of whole numbers with gaps is one of floats.
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True, check_dtype=False)


def test_beside_a_run_nothing_else_is_named_and_it_is_the_recorded_one(
    recorded: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    run, wire = recorded["images"]
    another, _ = recorded["rows"]
    for given, gist in (
        ({"knows": {"run": run, "pairs": 5}}, "leave out --knows pairs"),
        ({"knows": {"run": run}, "public": "digits"}, "leave out --public"),
        ({"knows": {"run": another}}, "another scenario"),
    ):
        with pytest.raises(SimsplitError, match=gist):
            audit(wire, tmp_path / "audit", **given)  # type: ignore[arg-type]


def _select(run: Run, attack: str) -> pd.DataFrame:
    leaks = run.leaks
    return leaks[leaks["attack"] == attack].reset_index(drop=True)


def test_attacks_that_follow_training_get_its_packets_in_order(
    recorded: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, wire = recorded["images"]
    real = Transcript.packets

    def turn(self: Transcript, *args: Any, **fields: Any) -> Any:
        packets = [*real(self, *args, **fields)]
        return iter(packets[::-1] if fields.get("phase") == "train" else packets)

    seen: list[Packet] = [*real(Transcript.open(wire), phase="train")]
    assert {packet.leg for packet in seen} >= {Leg.SMASHED, Leg.SMASHED_GRAD}
    monkeypatch.setattr(Transcript, "packets", turn)
    made = audit(
        wire, tmp_path / "audit", knows={"run": run}, attacks=[{"kind": "fora"}], budget=1e9
    )
    theirs, ours = (_select(each, "fora") for each in (Run.load(run), made.run))
    assert not theirs["value"].equals(ours["value"]), "the order does not count"
