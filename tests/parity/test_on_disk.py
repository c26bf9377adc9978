"""Clients that rest on disk are, bit for bit, those that rest in memory and those that are live."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, run_to_end, scenario
from comparing import TABLES, weights
from gists import says
from pace import quick

from simsplit.assembly import Assembler
from simsplit.assembly.memory import estimate_memory
from simsplit.assembly.trained import load_trained
from simsplit.attacking.finished import attack
from simsplit.deploy.terms import refuse_undeployable
from simsplit.errors import RunError, RunFailedError, ScenarioError
from simsplit.experiment import Experiment
from simsplit.forecasting.planning import plan
from simsplit.parties.on_disk import OnDisk, read_rows
from simsplit.parties.seats import Roster
from simsplit.results import checkpoints
from simsplit.results.row_file import RESTED, ROWS
from simsplit.scenario import Scenario
from simsplit.sizes import format_size
from simsplit.states import select_below
from simsplit.terminal.forecasts import tabulate_memory
from simsplit.valuing.coalitions import copy_checkpoint

OWN: dict[str, Any] = {"count": 6, "heads": "per_client"}
CASES: dict[str, dict[str, Any]] = {
    "momentum, a cohort with dropouts": {
        "train": {"client": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}},
        "cohort": {"fraction": 0.6, "dropout": 0.4},
        "evaluate": {"clients": 2},
    },
    "adam, starts of their own, epochs that do not end with a round": {
        "clients": {"start": "own"},
        "train": {"client": {"kind": "adam", "lr": 2e-3}, "lr_schedule": {"kind": "cosine"}},
        "schedule": {"kind": "round_robin", "local_steps": 2},
    },
    "nothing but weights, in parallel, vanilla": {
        "schedule": {"kind": "parallel"},
        "topology": "vanilla",
        "cohort": {"fraction": 0.5},
    },
    "lookahead, norms, channels last": {
        "model": {"kind": "resnet20"},
        "data": {"source": {"kind": "digits", "size": 8}},
        "train": {
            "channels_last": True,
            "client": {"kind": "adam", "lr": 2e-3, "amsgrad": True, "lookahead": {"every": 2}},
        },
        "cohort": {"fraction": 0.4},
    },
}
FEW, ALL = 2, 10**6


def make_scenario(rest: str, **changes: Any) -> Scenario:
    merged: dict[str, Any] = {
        "clients": OWN | changes.pop("clients", {}),
        "schedule": {"kind": "per_client", "rounds": 3} | changes.pop("schedule", {}),
        "engine": {"kind": "inline", "rest": rest},
    }
    return scenario(**merged | changes)


@pytest.fixture
def seats(monkeypatch: pytest.MonkeyPatch) -> Any:
    """How many clients may be live, unless they are in the middle of a step."""
    return lambda count: monkeypatch.setattr(Assembler, "seats", count)


def read_states(path: Path) -> dict[str, torch.Tensor]:
    """Return a run's last checkpoint with clients' states in it, wherever they rested."""
    tensors = weights(path)
    rested = select_below(tensors, RESTED)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(RESTED)}
    if rested:
        rows = read_rows(path / "checkpoints", rested, OWN["count"])
        for number in rows:
            own = rows.read_state(number)
            kept |= {f"client/{number}/{name}": tensor for name, tensor in own.items()}
    return kept


def assert_same(disk: Path, other: Path) -> None:
    """Assert that tables and weights are equal; who has not begun has no row."""
    for table in TABLES:
        one, two = (path / f"{table}.csv" for path in (disk, other))
        assert one.exists() == two.exists()
        assert not one.exists() or one.read_text() == two.read_text(), table
    ours, theirs = read_states(disk), read_states(other)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    never = theirs.keys() - ours.keys()
    assert all(int(theirs[name]) == 0 for name in never if "/taken." in name)
    assert not any("optimizer" in name for name in never)


def rows_of(made: Experiment) -> OnDisk:
    roster = made.parts.pool.clients
    assert isinstance(roster, Roster)
    assert roster.rows is not None
    return roster.rows


@pytest.mark.parametrize("case", quick(CASES, *list(CASES)[:2]))
def test_on_disk_in_memory_and_live_are_equal(case: str, tmp_path: Path, seats: Any) -> None:
    seats(ALL)
    run_to_end(make_scenario("memory", **CASES[case]), tmp_path / "live")
    seats(FEW)
    run_to_end(make_scenario("memory", **CASES[case]), tmp_path / "memory")
    made = run_to_end(make_scenario("disk", **CASES[case]), tmp_path / "disk")
    assert_same(tmp_path / "disk", tmp_path / "live")
    assert_same(tmp_path / "disk", tmp_path / "memory")
    file = tmp_path / "disk" / "checkpoints" / ROWS
    assert 0 < file.stat().st_size <= made.live.estimate.on_disk


@pytest.mark.parametrize("case", quick(CASES, list(CASES)[1]))
def test_resumes_to_the_bit(case: str, tmp_path: Path, seats: Any) -> None:
    """Stopped again and again, also between rests, a run ends as one that never stopped."""
    seats(FEW)
    run_to_end(make_scenario("disk", **CASES[case]), tmp_path / "whole")
    for after, rest in ((9, "disk"), (5, "disk"), (4, "memory"), (1000, "disk")):
        wanted = make_scenario(rest, **CASES[case])
        try:
            Experiment(wanted, tmp_path / "broken", [StopAt(after)]).run(resume=True)
        except KeyboardInterrupt:
            continue
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_checkpoints_name_rows_and_leave_them_untouched(tmp_path: Path, seats: Any) -> None:
    """Each of those kept can be gone on from; places that none names are used again."""
    seats(FEW)
    changes = {"schedule": {"rounds": 6}, "cohort": {"fraction": 0.4}}
    wanted = make_scenario("disk", **changes)
    made = run_to_end(wanted, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    digest = checkpoints.compute_digest(wanted.identity())
    rounds = checkpoints.list_rounds(folder)
    assert rounds == [6, 5]
    for number in rounds:
        named = checkpoints.load_round(folder, digest, number)
        assert not any(name.startswith("client/") for name in named)
    rows = rows_of(made)
    begun = len([*rows])
    selected = wanted.cohort.count_selected(OWN["count"])
    # The newest row of each, and those that the checkpoint before names.
    assert (folder / ROWS).stat().st_size <= (begun + 2 * selected) * rows.file.width
    shutil.rmtree(folder / "round-000006")
    Experiment(wanted, tmp_path / "run").run(resume=True)
    run_to_end(wanted, tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_damaged_row_sends_a_run_back(tmp_path: Path, seats: Any) -> None:
    seats(FEW)
    wanted = make_scenario("disk", cohort={"fraction": 0.4})
    run_to_end(wanted, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    digest = checkpoints.compute_digest(wanted.identity())
    newest, before = (
        set(checkpoints.load_round(folder, digest, number)[f"{RESTED}slots"].tolist())
        for number in (3, 2)
    )
    width = int(checkpoints.load_round(folder, digest, 3)[f"{RESTED}width"])
    with (folder / ROWS).open("r+b") as file:
        file.seek(min(newest - before) * width)
        file.write(b"damaged")
    loaded = checkpoints.load(folder, digest)
    assert loaded is not None
    _, progress, complaints = loaded
    assert (progress.round, len(complaints)) == (2, 1)
    run_to_end(wanted, tmp_path / "whole")
    Experiment(wanted, tmp_path / "run").run(resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")
    (folder / ROWS).unlink()
    with pytest.raises(RunError, match=ROWS):
        checkpoints.load(folder, digest)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(
    tmp_path: Path, seats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats(FEW)
    wanted = make_scenario("disk", **CASES["momentum, a cohort with dropouts"])
    run_to_end(wanted, tmp_path / "whole")
    write, folder = os.pwrite, tmp_path / "run" / "checkpoints"
    pieces = []

    def fill(handle: int, content: bytes, place: int) -> int:
        """Write rows in pieces; after two rounds there is room for two more."""
        pieces.append(len(checkpoints.list_rounds(folder)) == 2)
        if sum(pieces) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, content[:40_000], place)

    monkeypatch.setattr(os, "pwrite", fill)
    with pytest.raises(RunFailedError) as full:
        run_to_end(wanted, tmp_path / "run")
    assert str(folder / ROWS) in str(full.value)
    assert "--resume" in str(full.value)
    assert checkpoints.list_rounds(folder) == [2, 1]
    monkeypatch.setattr(os, "pwrite", write)
    Experiment(wanted, tmp_path / "run").run(resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_is_refused_before_work_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make_scenario("disk")
    needed = Experiment(wanted, tmp_path / "run").live.estimate.on_disk
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(ScenarioError) as refused:
        Experiment(wanted, tmp_path / "run")
    assert says(str(refused.value), f"engine.rest: ... {needed:,} bytes in {tmp_path}")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    Experiment(wanted, tmp_path / "run")


def test_a_plan_names_the_bytes_on_disk(tmp_path: Path) -> None:
    wanted = make_scenario("disk", cohort={"fraction": 0.4})
    estimate = Experiment(wanted, tmp_path / "run").live.estimate
    forecast = plan(wanted, timing=False)
    assert forecast.to_dict()["disk_bytes"] == estimate.on_disk > 0
    assert format_size(estimate.on_disk) in {row[-1] for row in tabulate_memory(forecast).rows}
    assert plan(make_scenario("memory"), timing=False).to_dict()["disk_bytes"] == 0


def test_a_client_of_the_finished_run_can_be_had(tmp_path: Path, seats: Any) -> None:
    seats(FEW)
    changes = {"clients": {"start": "own"}, "cohort": {"fraction": 0.4}, "schedule": {"rounds": 1}}
    run_to_end(make_scenario("disk", **changes), tmp_path / "disk")
    run_to_end(make_scenario("memory", **changes), tmp_path / "memory")
    for client in range(OWN["count"]):
        one, other = (
            load_trained(tmp_path / name, client).weights() for name in ("disk", "memory")
        )
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow
def test_another_run_goes_on_from_its_rows(tmp_path: Path, seats: Any) -> None:
    """As coalitions do, whose clients rest in memory; an attack on the finished run reads them."""
    seats(FEW)
    changes = {"clients": {"count": 3}, "schedule": {"rounds": 2}}
    run_to_end(make_scenario("disk", **changes), tmp_path / "run")
    copy_checkpoint(tmp_path / "run", tmp_path / "other", 1)
    Experiment(make_scenario("memory", **changes), tmp_path / "other").run(resume=True)
    assert_same(tmp_path / "run", tmp_path / "other")
    attack(tmp_path / "run", "unsplit", {"outer": "2", "targets.count": "2"})
    assert (tmp_path / "run" / "attacks" / "unsplit" / "leaks.csv").exists()


def test_a_deployment_has_nobody_at_rest() -> None:
    with pytest.raises(ScenarioError) as refused:
        refuse_undeployable(make_scenario("disk"))
    assert refused.value.field == "engine.rest"


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": {"heads": "shared"}},
        {"clients": {"tail": "shared"}},
        {"clients": {"heads": "shared"}, "schedule": {"kind": "parallel"}, "aggregation": "fused"},
        {"method": [{"kind": "cast", "to": "int8"}]},
        {"clients": {"malicious": {"fraction": 0.5, "poison": [{"kind": "label_flip"}]}}},
        {"attacks": [{"kind": "unsplit"}]},
        {"engine": {"kind": "ray", "rest": "disk"}},
    ],
)
def test_what_cannot_rest_on_disk_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError) as refused:
        make_scenario("disk", **changes)
    assert says(str(refused.value), "engine.rest: ")


def test_a_hundred_thousand_own_heads_take_no_memory(tmp_path: Path) -> None:
    """Those that rest take a few numbers each, also where all of them take part in the end."""
    changes: dict[str, Any] = {
        "clients": {"count": 100_000},
        "data": {"partition": {"kind": "drawn", "samples": 4}},
        "cohort": {"fraction": 1e-3},
        "schedule": {"rounds": 2},
        "evaluate": {"every": 0, "clients": 2},
        "train": {"batch_size": 4, "client": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}},
        "checkpoint": {"every": 1, "keep": 1},
    }
    made = run_to_end(make_scenario("disk", **changes), tmp_path / "run")
    rows = rows_of(made)
    assert len(rows._slots) == 100_000
    assert 150 <= len([*rows]) <= 200
    arrays = [each for each in vars(rows).values() if hasattr(each, "nbytes")]
    row = rows.file.width
    assert sum(each.nbytes for each in arrays) < 100_000 * 64 < 100_000 * row / 100
    assert (tmp_path / "run" / "checkpoints" / ROWS).stat().st_size <= 300 * row
    assert made.live.estimate.on_disk == 300 * row
    longer = changes | {"schedule": {"rounds": 1000}}
    disk, memory = (
        estimate_memory(Assembler(given, made.data, torch.device("cpu")).owners, made.data)
        for given in (make_scenario(rest, **longer) for rest in ("disk", "memory"))
    )
    assert disk.on_disk == (100_000 + 100) * row
    own = "clients' own parts"
    assert disk.parts[own] * 1000 < memory.parts[own]
