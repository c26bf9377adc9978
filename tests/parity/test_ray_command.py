"""The command line with Ray hosts: what it says, what it leaves behind, however it ends."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from builders import StopAt, experiment, run_to_end, scenario
from commands import Command, wait_for_rounds, write_scenario
from comparing import assert_equal
from gists import says

from simsplit import load_scenario, run
from simsplit.experiment import Experiment
from simsplit.results import CHECKPOINTS, Run
from simsplit.results.checkpoints import list_rounds

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]

TWO_HOSTS = "engine={kind: ray, hosts: 2}"
PLUGIN = """
from typing import Literal
from simsplit import Method, MethodConfig


class HalveConfig(MethodConfig):
    kind: Literal["halve"] = "halve"
    throws: bool = False

    def build(self, site):
        return Halve(self.throws)


class Halve(Method):
    def __init__(self, throws):
        self.throws = throws

    def encode(self, z, step):
        return z / 2

    def lift(self, z, step):
        return z * 2

    def compute_encode_loss(self, step):
        return 1 / 0 if self.throws and step.number == 2 else None


METHODS = {"halve": HalveConfig}
"""


def test_a_run_with_a_plugin_from_the_current_directory(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    halved = ("--set", "method=[{kind: halve}]")
    words = [write_scenario(scenario(), tmp_path), "--plugin", "mine", *halved, "--out", "hosts"]
    code, out, err = command.run(*words, "--set", TWO_HOSTS)
    assert code == 0, err
    assert command.are_gone()
    assert "hosts" in out
    lines = err.splitlines()
    assert lines[2] == "engine: ray, 2 hosts of 1 thread"
    begins = ("tiny: ", "memory: ", "engine: ", "run directory: ", "round 1/2", "round 2/2")
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    changes, plugins = {"method": "[{kind: halve}]"}, [tmp_path / "mine.py"]
    run(load_scenario(tmp_path / "scenario.yaml", changes, plugins), tmp_path / "inline")
    for table in ("rounds", "clients", "wire"):
        one, other = (tmp_path / name / f"{table}.csv" for name in ("hosts", "inline"))
        assert one.read_text() == other.read_text()
    assert Run.load(tmp_path / "hosts").rounds["round"].tolist() == [1, 2]


def test_a_failure_in_training_that_auto_took_to_hosts(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    # a third step: a rehearsal takes two
    given = scenario(aggregation="splitfed_v1", train={"batch_size": 8})
    words = [write_scenario(given, tmp_path), "--plugin", "mine", "--out", "run"]
    fault = ["--set", "method=[{kind: halve, throws: true}]"]
    auto = ["--set", "engine={kind: auto, hosts: 2}"]
    code, out, err = command.run(*words, *fault, *auto)
    assert (code, out) == (1, "")
    assert command.are_gone()
    lines = err.splitlines()
    assert lines[2] == "engine: ray, 2 hosts of 1 thread (auto)"
    (failure,) = lines[4:]
    named = (
        "'halve'",
        "hook compute_encode_loss",
        "leg smashed_grad",
        "round 1",
        "client 0",
        "ZeroDivisionError",
    )
    assert [word for word in (*named, "mine.py") if word not in failure] == []
    assert "mine.py" in (tmp_path / "run" / "traceback.txt").read_text()


def test_auto_stays_inline_for_a_head_that_is_handed_round(
    command: Command, tmp_path: Path
) -> None:
    _, _, err = command.run(write_scenario(scenario(), tmp_path), "--set", "engine=auto")
    assert says(err.splitlines()[2], "engine: inline (auto: ... share")


def test_more_gpus_than_this_machine_has(command: Command, tmp_path: Path) -> None:
    """Ray would wait for them without end."""
    wanted = "engine={kind: ray, hosts: 2, gpus_per_host: 64}"
    words = [write_scenario(scenario(), tmp_path), "--out", "run", "--set", wanted]
    code, out, err = command.run(*words)
    assert (code, out) == (2, "")
    assert says(err, "error: scenario.engine.hosts: ... machine ... 0 hosts ... 64 GPUs ... 2")
    assert command.are_gone()


LONG = scenario(schedule={"rounds": 48}, clients={"heads": "per_client"})


def test_ctrl_c(command: Command, tmp_path: Path) -> None:
    """As a terminal sends it: to all of the foreground's processes."""
    words = [write_scenario(LONG, tmp_path), "--out", "run", "--set", TWO_HOSTS]
    process = command.start(*words)
    wait_for_rounds(tmp_path / "run", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert command.are_gone()
    assert "simsplit run scenario.yaml" in err.splitlines()[-1]
    assert Run.load(tmp_path / "run").summary["status"] == "interrupted"
    ours = [line for line in err.splitlines() if line]
    assert all(line.startswith(("round ", "interrupted")) for line in ours[4:])
    experiment(LONG, tmp_path / "run").run(resume=True)
    run_to_end(LONG, tmp_path / "whole")
    assert_equal(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("everybody", [False, True])
def test_a_request_to_terminate(command: Command, tmp_path: Path, everybody: bool) -> None:
    """As docker sends it, to the command, and as slurm does, to all of its processes."""
    process = command.start(write_scenario(LONG, tmp_path), "--out", "run", "--set", TWO_HOSTS)
    wait_for_rounds(tmp_path / "run", 2, process)
    if everybody:
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert command.are_gone()
    assert "simsplit run scenario.yaml" in err.splitlines()[-1]
    assert Run.load(tmp_path / "run").summary["status"] == "interrupted"


DEATHS = {"raylet": "raylet", "gcs_server": "head process"}
"""The processes of Ray without which a run cannot go on, and the words for them."""


@pytest.mark.parametrize("victim", DEATHS)
def test_the_death_of_ray_itself(command: Command, tmp_path: Path, victim: str) -> None:
    given = scenario(schedule={"rounds": 4000}, clients={"heads": "per_client"})
    process = command.start(
        write_scenario(given, tmp_path), "--out", "run", "--set", TWO_HOSTS, "-q"
    )
    wait_for_rounds(tmp_path / "run", 2, process)
    for pid in command.list_named(victim):
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (1, "")
    (line,) = err.splitlines()
    assert DEATHS[victim] in line
    assert "--resume" in line
    assert command.are_gone()
    summary = Run.load(tmp_path / "run").summary
    assert summary["status"] == "failed"
    # it may have died between the end of a round and its checkpoint
    kept = max(list_rounds(tmp_path / "run" / CHECKPOINTS))
    assert summary["rounds_done"] - kept in (0, 1)
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "run", [StopAt(7)]).run(resume=True)
    one_more = range(1, kept + 2)
    assert Run.load(tmp_path / "run").rounds["round"].tolist() == [*one_more]


@pytest.mark.parametrize("victim", DEATHS)
def test_the_death_of_ray_itself_in_a_sweep(tmp_path: Path, victim: str) -> None:
    """No cell that still waits is begun: a new worker would never start."""
    command = Command(tmp_path, ("simsplit", "sweep"))
    write_scenario(scenario(schedule={"rounds": 4000}), tmp_path)
    (tmp_path / "s.yaml").write_text("extends: scenario.yaml\nsweep: {seed: [0, 1, 2, 3]}\n")
    process = command.start("s.yaml", "--out", "swept", "--jobs", "2", "-q")
    try:
        wait_for_rounds(tmp_path / "swept" / "seed=0", 2, process)
        for pid in command.list_named(victim):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=90)
        assert command.are_gone()
    finally:
        command.kill()
    assert (process.returncode, out) == (1, "")
    assert DEATHS[victim] in err
    assert "--resume" in err
    assert "Traceback" not in err


def test_pulling_the_plug(command: Command, tmp_path: Path) -> None:
    """Nothing tells Ray that its driver is gone; its processes must find out for themselves.

    Two small ones of Ray's (its agents) take a minute for that.
    """
    process = command.start(write_scenario(LONG, tmp_path), "--out", "run", "--set", TWO_HOSTS)
    wait_for_rounds(tmp_path / "run", 2, process)
    started = " ".join(command.alive().values())
    process.kill()
    process.communicate()
    assert command.are_gone(but="Agent "), command.alive()
    experiment(LONG, tmp_path / "run").run(resume=True)
    run_to_end(LONG, tmp_path / "whole")
    assert_equal(tmp_path / "whole", tmp_path / "run")
    folder = Path(started.partition("--raylet_socket_name=")[2].partition("/session")[0])
    assert folder.name.startswith("simsplit-ray-")
    shutil.rmtree(folder, ignore_errors=True)  # nobody was left to do it
