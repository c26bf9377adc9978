"""The command line with Ray hosts: what it says, what it leaves behind, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from builders import experiment, finished, scenario
from comparing import assert_equal

from simsplit.results import Run
from simsplit.scenario import Scenario

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
        return z / (0 if self.throws and step.number == 1 else 2)

    def lift(self, z, step):
        return z * 2

    def loss(self, step):
        return 1 / 0 if self.throws else None


METHODS = {"halve": HalveConfig}
"""


@dataclass
class Command:
    """Runs simsplit in a folder; its processes are known by a mark in their environment."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid4().hex)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, "SIMSPLIT_TEST": self.mark, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simsplit", "run", *words],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return self.process

    def run(self, *words: str) -> tuple[int, str, str]:
        out, err = self.start(*words).communicate(timeout=120)
        return self.process.returncode, out, err

    def alive(self) -> dict[int, str]:
        """Those of its processes that still are, and their command lines."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (entry / "environ").read_text(errors="replace"):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # gone, or not ours
        return found

    def gone(self) -> bool:
        """Whether all of its processes end within a few seconds."""
        until = time.monotonic() + 20
        while self.alive() and time.monotonic() < until:
            time.sleep(0.1)
        return not self.alive()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)


def wait_for_rounds(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    table = path / "rounds.csv"
    while not table.exists() or table.read_text().count("\n") <= count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def written(given: Scenario, folder: Path) -> str:
    (folder / "scenario.yaml").write_text(given.yaml())
    return "scenario.yaml"


def test_a_run_with_a_plugin_from_the_current_directory(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = [written(scenario(), tmp_path), "--plugin", "mine", "--set", "method=[{kind: halve}]"]
    code, out, err = command.run(*words, "--out", "hosts", "--set", TWO_HOSTS)
    assert code == 0, err
    assert command.gone()
    assert "The run lies in hosts" in out
    lines = err.splitlines()
    assert lines[2] == "engine: ray, 2 hosts of 1 thread"
    begins = ("tiny: ", "memory: ", "engine: ", "run directory: ", "round 1/2", "round 2/2")
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    assert command.run(*words, "--out", "inline", "--quiet") == (0, "", "")
    for table in ("rounds", "clients", "wire"):
        one, other = (tmp_path / run / f"{table}.csv" for run in ("hosts", "inline"))
        assert one.read_text() == other.read_text()
    assert Run.load(tmp_path / "hosts").rounds["round"].tolist() == [1, 2]


def test_a_failure_in_training_that_auto_took_to_hosts(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    given = scenario(aggregation="splitfed_v1")
    words = [written(given, tmp_path), "--plugin", "mine", "--out", "run"]
    fault = ["--set", "method=[{kind: halve, throws: true}]"]
    auto = ["--set", "engine={kind: auto, hosts: 2}"]
    code, out, err = command.run(*words, *fault, *auto)
    assert (code, out) == (1, "")
    assert command.gone()
    lines = err.splitlines()
    assert lines[2] == "engine: ray, 2 hosts of 1 thread (auto)"
    assert lines[4:] == [
        "error: round 1, client 0, leg smashed_grad: ZeroDivisionError: division by zero"
    ]
    assert "mine.py" in (tmp_path / "run" / "traceback.txt").read_text()


def test_auto_stays_inline_for_a_head_that_is_handed_round(
    command: Command, tmp_path: Path
) -> None:
    _, _, err = command.run(written(scenario(), tmp_path), "--set", "engine=auto")
    assert err.splitlines()[2] == (
        "engine: inline "
        "(auto: what clients share goes from one to the next, so none can work ahead)"
    )


LONG = scenario(schedule={"rounds": 12}, clients={"heads": "per_client"})


def test_ctrl_c(command: Command, tmp_path: Path) -> None:
    """As a terminal sends it: to all of the foreground's processes."""
    words = [written(LONG, tmp_path), "--out", "run", "--set", TWO_HOSTS]
    process = command.start(*words)
    wait_for_rounds(tmp_path / "run", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert command.gone()
    assert err.splitlines()[-1].startswith("interrupted; go on with: simsplit run scenario.yaml")
    assert Run.load(tmp_path / "run").summary["status"] == "interrupted"
    ours = [line for line in err.splitlines() if line]
    assert all(line.startswith(("round ", "interrupted")) for line in ours[4:])
    experiment(LONG, tmp_path / "run").run(resume=True)
    finished(LONG, tmp_path / "whole")
    assert_equal(tmp_path / "whole", tmp_path / "run")


def test_pulling_the_plug(command: Command, tmp_path: Path) -> None:
    """Nothing tells Ray that its driver is gone; its processes must find out for themselves."""
    process = command.start(written(LONG, tmp_path), "--out", "run", "--set", TWO_HOSTS)
    wait_for_rounds(tmp_path / "run", 2, process)
    started = " ".join(command.alive().values())
    process.kill()
    process.communicate()
    assert command.gone(), command.alive()
    experiment(LONG, tmp_path / "run").run(resume=True)
    finished(LONG, tmp_path / "whole")
    assert_equal(tmp_path / "whole", tmp_path / "run")
    folder = Path(started.partition("--raylet_socket_name=")[2].partition("/session")[0])
    assert folder.name.startswith("simsplit-ray-")
    shutil.rmtree(folder, ignore_errors=True)  # nobody was left to do it
