"""Damaged, foreign and unwritable state: each a clear message, the last good state kept."""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import experiment, run_to_end, scenario
from finished import FinishedRuns
from safetensors.torch import load_file

from simsplit.errors import RunError, RunFailedError
from simsplit.experiment import Experiment
from simsplit.models import fresh
from simsplit.progress import Observer
from simsplit.results import CHECKPOINTS, Run, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.running.checkpointing import Stopping
from simsplit.scenario.declared_fields import StopConfig


class Warnings(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


def newest(path: Path) -> Path:
    return newest_in(path / "checkpoints")


def newest_in(folder: Path) -> Path:
    return sorted(folder.iterdir())[-1]


def test_saves_and_loads_tensors_and_progress(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3), "b/c": torch.tensor(2.5), "empty": torch.zeros(0, 2)}
    progress = Progress(round=7, tables={"rounds": 11}, holder=2, best=0.5)
    checkpoints.save(tmp_path, tensors, progress, "digest", keep=2)
    result = checkpoints.load(tmp_path, "digest")
    assert result is not None
    assert result[1] == progress
    assert result[2] == []
    assert all(torch.equal(result[0][name], tensor) for name, tensor in tensors.items())


def test_a_crowd_is_kept_in_few_tensors(tmp_path: Path) -> None:
    tensors = {
        f"client/{number}/{name}": torch.full(shape, float(number))
        for number in range(40)
        for name, shape in (("own.0.weight", (2, 3)), ("taken.private", ()))
    }
    tensors |= {"client/7/own.1.alone": torch.ones(2), "server/weight": torch.zeros(1)}
    tensors["client/8/own.0.weight"] = torch.ones(4)  # of another form than the crowd's
    checkpoints.save(tmp_path, tensors, Progress(round=1), "digest", keep=2)
    assert len(load_file(newest_in(tmp_path) / "state.safetensors")) == 7
    result = checkpoints.load(tmp_path, "digest")
    assert result is not None
    assert result[0].keys() == tensors.keys()
    assert all(torch.equal(result[0][name], tensor) for name, tensor in tensors.items())


def test_keeps_as_many_as_asked_the_newest(tmp_path: Path) -> None:
    for number in (1, 2, 9, 10, 11):
        checkpoints.save(tmp_path, {}, Progress(round=number), "digest", keep=2)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["round-000010", "round-000011"]


def test_the_newest_is_that_of_the_highest_round_whatever_its_name(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000):
        checkpoints.save(tmp_path, {}, Progress(round=number), "digest", keep=1)
    result = checkpoints.load(tmp_path, "digest")
    assert result is not None
    assert result[1].round == 1_000_000
    assert checkpoints.list_rounds(tmp_path) == [1_000_000]


def test_first_weights_are_those_of_a_runs_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / CHECKPOINTS
    for number in (999_999, 1_000_000):
        weights = {"server/trunk.weight": torch.tensor([float(number)])}
        checkpoints.save(folder, weights, Progress(round=number), "digest", keep=2)
    shutil.copytree(folder / "round-999999", folder / "round-1000001.partial")
    assert fresh._find_file(tmp_path).parent.name == "round-1000000"


def test_keys_are_declared_and_stay_where_a_class_is_renamed(tmp_path: Path) -> None:
    """A resumed run finds what an earlier version wrote, whatever its classes are called now."""
    watched = [
        {"kind": "safesplit", "response": "rollback"},
        {"kind": "krum", "response": "downweight", "window": 2},
    ]
    schedule = {"kind": "per_client", "rounds": 1}
    given = scenario(clients={"count": 4}, detectors=watched, schedule=schedule)
    live = experiment(given, tmp_path / "run").live
    live.detection.guard.barred.add(3)
    held = live.detection.state()
    assert {name.split("/")[0] for name in held} == {"watch", "guard", "turns"}
    again = experiment(given, tmp_path / "again").live
    for part in (again.detection.guard, again.detection.turns, again.detection.watch):
        part.__class__ = type("Renamed", (type(part),), {})
    again.load(live.state(), live.progress)
    assert again.detection.guard.barred == {3}
    assert again.state().keys() == live.state().keys()


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoints.load(tmp_path, "digest") is None


@pytest.mark.slow
def test_a_truncated_checkpoint_is_passed_over_and_named(
    finished: FinishedRuns, tmp_path: Path
) -> None:
    given = scenario(schedule={"rounds": 3})
    finished.copy(given, tmp_path / "torn")
    blob = newest(tmp_path / "torn") / "state.safetensors"
    blob.write_bytes(blob.read_bytes()[:-100])
    observer = Warnings()
    Experiment(given, tmp_path / "torn", [observer]).run(resume=True)
    assert len(observer.messages) == 1
    assert "round-000003 is damaged" in observer.messages[0]
    assert "from round 2" in observer.messages[0]
    for table in ("rounds", "clients", "wire"):
        whole = (finished(given) / f"{table}.csv").read_text()
        assert (tmp_path / "torn" / f"{table}.csv").read_text() == whole


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, {"a": torch.zeros(64)}, Progress(round=1), "digest", keep=1)
    blob = tmp_path / "round-000001" / "state.safetensors"
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(RunError, match=r"checkpoint.*written"):
        checkpoints.load(tmp_path, "digest")


def test_another_scenarios_checkpoint_is_refused(finished: FinishedRuns, tmp_path: Path) -> None:
    finished.copy(scenario(), tmp_path / "run")
    with pytest.raises(RunError, match=r"another scenario: seed.*3.*4.*--out"):
        experiment(scenario(seed=4), tmp_path / "run").run(resume=True)


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(finished: FinishedRuns, tmp_path: Path) -> None:
    """Resuming with more rounds gives what a longer run would have given from the start."""
    finished.copy(scenario(), tmp_path / "run")  # two rounds
    longer = scenario(schedule={"rounds": 4}, output={"root": "elsewhere"})
    experiment(longer, tmp_path / "run").run(resume=True)
    whole = (finished(longer) / "rounds.csv").read_text()
    assert (tmp_path / "run" / "rounds.csv").read_text() == whole
    assert (tmp_path / "run" / "scenario.yaml").read_text() == longer.yaml()


def test_nothing_pickled_is_ever_read(tmp_path: Path) -> None:
    """A checkpoint whose tensors are a pickle is damaged, not executed."""
    marker = tmp_path / "executed"
    checkpoints.save(tmp_path / "c", {"a": torch.zeros(1)}, Progress(round=1), "d", keep=1)
    folder = tmp_path / "c" / "round-000001"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path(str(marker)).touch, ()  # type: ignore[return-value]

    torch.save(Bomb(), folder / "state.safetensors")
    blob = (folder / "state.safetensors").read_bytes()
    facts = json.loads((folder / "state.json").read_text())
    digest = hashlib.blake2b(blob, digest_size=16).hexdigest()
    facts["tensors"] = {"bytes": len(blob), "blake2b": digest}
    (folder / "state.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="no usable checkpoint"):
        checkpoints.load(tmp_path / "c", "d")
    assert not marker.exists()


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_state(tmp_path: Path) -> None:
    steep = {"kind": "sgd", "lr": 1e4}
    given = scenario(
        train={
            "client": steep,
            "server": steep,
            "lr_schedule": {"kind": "step", "milestones": [1], "gamma": 1e30},
        },
        schedule={"rounds": 3},
    )
    with pytest.raises(RunFailedError, match=r"round \d: client \d's training loss.*learning rate"):
        run_to_end(given, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.summary["status"] == "failed"
    assert "finite" in run.summary["reason"]
    assert run.rounds["train_loss"].notna().all()


def test_a_defect_leaves_a_run_that_says_what_happened(tmp_path: Path) -> None:
    """A plugin that throws, say: the summary must not go on claiming that the run is running."""

    class Defect(Observer):
        def step(self, done: int, total: int) -> None:
            raise ZeroDivisionError("in a plugin")

    with pytest.raises(ZeroDivisionError):
        Experiment(scenario(), tmp_path / "run", [Defect()]).run(resume=False)
    summary = Run.load(tmp_path / "run").summary
    assert summary["status"] == "failed"
    assert summary["reason"] == "ZeroDivisionError: in a plugin"


FULL_DISK = """
import resource, sys
from simsplit.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
main()
"""


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_run_can_resume(
    finished: FinishedRuns, tmp_path: Path
) -> None:
    """A limit on file size stands for the disk: the checkpoint's tensors do not fit."""
    file = tmp_path / "scenario.yaml"
    file.write_text(scenario().yaml())
    arguments = ["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]
    full = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=False
    )
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    assert "cannot write" in full.stderr
    assert "--resume" in full.stderr
    subprocess.run([sys.executable, "-m", "simsplit", *arguments, "--resume"], check=True)
    whole = (finished(scenario()) / "rounds.csv").read_text()
    assert (tmp_path / "run" / "rounds.csv").read_text() == whole


class TestRoundsThatAreUndone:
    """A client's suspect rounds are undone with it, as far as checkpoints reach."""

    def undo(self, path: Path, keep: int, since: int) -> tuple[int, list[int]]:
        given = scenario(schedule={"rounds": 4}, checkpoint={"keep": keep})
        made = run_to_end(given, path).checkpoints
        made.undo_since(since)
        return made.kept, checkpoints.list_rounds(path / CHECKPOINTS)

    def test_since_a_round(self, tmp_path):
        assert self.undo(tmp_path, 3, 4) == (3, [3, 2])

    def test_since_the_first_where_all_are_kept(self, tmp_path):
        assert self.undo(tmp_path, 9, 1) == (0, [])

    def test_since_one_before_the_oldest_that_is_kept(self, tmp_path):
        assert self.undo(tmp_path, 2, 1) == (3, [3])

    def test_since_one_that_is_not_kept_yet(self, tmp_path):
        assert self.undo(tmp_path, 2, 5) == (4, [4, 3])


def test_a_figure_that_is_no_number_is_never_the_best():
    """Nothing is above it, so that no later round would be an improvement."""
    live = SimpleNamespace(progress=Progress())
    stopping = Stopping(StopConfig(metric="test_accuracy"), live)
    for value, best, waited in ((math.nan, None, 1), (0.5, 0.5, 0), (math.nan, 0.5, 1)):
        stopping.note_figures({"test_accuracy": value}, main=True)
        assert (live.progress.best, live.progress.waited) == (best, waited)
