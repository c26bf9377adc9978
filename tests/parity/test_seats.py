"""Clients that rest as flat tensors between their turns are, bit for bit, clients that are live."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, run_to_end, scenario
from comparing import assert_equal, weights
from pace import quick

from simsplit.assembly import Assembler
from simsplit.experiment import Experiment
from simsplit.parties.flat import Flat
from simsplit.parties.seats import Roster, Seat
from simsplit.scenario import Scenario

OWN: dict[str, Any] = {"count": 5, "heads": "per_client"}
ADAM = {"kind": "adam", "lr": 2e-3}
CASES: dict[str, dict[str, Any]] = {
    "momentum": {},
    "lookahead": {"train": {"client": {"kind": "sgd", "lookahead": {"every": 2}}}},
    "adam, starts of their own, epochs that do not end with a round": {
        "clients": {"start": "own"},
        "train": {"client": ADAM, "lr_schedule": {"kind": "cosine"}},
        "schedule": {"kind": "round_robin", "local_steps": 2, "rounds": 3},
        "data": {"augment": ["crop"]},
    },
    "vanilla, norms, channels last, a cohort with dropouts": {
        "model": {"kind": "resnet20"},
        "data": {"source": {"kind": "digits", "size": 8}},
        "train": {"channels_last": True, "client": ADAM},
        "topology": "vanilla",
        "cohort": {"fraction": 0.6, "dropout": 0.4},
        "evaluate": {"clients": 2},
    },
}
FEW, ALL = 2, 10**6


def make_scenario(**changes: Any) -> Scenario:
    return scenario(**({"clients": OWN} | changes | {"clients": OWN | changes.get("clients", {})}))


@pytest.fixture
def seats(monkeypatch: pytest.MonkeyPatch) -> Any:
    """How many clients may be live; beyond that number of clients they take turns."""
    return lambda count: monkeypatch.setattr(Assembler, "seats", count)


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, *list(CASES)[2:]))
def test_resting_clients_are_live_ones_bit_for_bit(case: str, tmp_path: Path, seats: Any) -> None:
    wanted = make_scenario(**CASES[case])
    seats(ALL)
    plain = run_to_end(wanted, tmp_path / "plain")
    seats(FEW)
    resting = run_to_end(wanted, tmp_path / "resting")
    assert not isinstance(plain.parts.pool.clients, Roster)
    assert isinstance(resting.parts.pool.clients, Roster)
    assert_equal(tmp_path / "plain", tmp_path / "resting")


@pytest.mark.slow
def test_resumed_between_one_crew_and_the_other(tmp_path: Path, seats: Any) -> None:
    wanted = make_scenario(train={"client": ADAM}, schedule={"rounds": 3})
    seats(ALL)
    run_to_end(wanted, tmp_path / "whole")
    for count, after in ((FEW, 12), (ALL, 8), (FEW, 100)):
        seats(count)
        try:
            Experiment(wanted, tmp_path / "broken", [StopAt(after)]).run(resume=True)
        except KeyboardInterrupt:
            continue
    assert_equal(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_a_moment_that_is_forgotten_shows(
    tmp_path: Path, seats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make_scenario()
    seats(ALL)
    run_to_end(wanted, tmp_path / "plain")
    seats(FEW)
    leave = Seat.leave

    def forgetful(seat: Seat, flat: Flat) -> None:
        leave(seat, flat)
        flat.moments = None

    monkeypatch.setattr(Seat, "leave", forgetful)
    run_to_end(wanted, tmp_path / "resting")
    one, other = (weights(tmp_path / name) for name in ("plain", "resting"))
    name = "client/0/own.0.head.0.weight"
    assert not torch.equal(one[name], other[name])


def test_what_clients_share_keeps_all_of_them_live(tmp_path: Path, seats: Any) -> None:
    seats(FEW)
    for changes in (
        {"clients": {"tail": "shared"}},
        {"method": [{"kind": "cast", "to": "int8"}]},
        {"clients": {"heads": "shared"}},
    ):
        pool = Experiment(make_scenario(**changes), tmp_path / "run").parts.pool
        assert not isinstance(pool.clients, Roster)
