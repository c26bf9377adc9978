"""Programs in processes of their own, and what is left of them afterwards."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from simsplit.scenario import Scenario


@dataclass
class Command:
    """Runs programs in a folder; their processes are known by a mark in their environment."""

    folder: Path
    program: Sequence[str] = ("simsplit", "run")
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        own = {"SIMSPLIT_TEST": self.mark, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", *self.program, *words],
            cwd=self.folder,
            env={**os.environ, **own, **self.environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, within_s: float = 120) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=within_s)
        return process.returncode, out, err

    def alive(self) -> dict[int, str]:
        """Return its processes that still live, with their command lines."""
        results = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (entry / "environ").read_text(errors="replace"):
                    results[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # gone, or not ours
        return results

    def list_named(self, name: str) -> list[int]:
        """Return its processes whose program has this name."""
        return [pid for pid, line in self.alive().items() if name in line.split(" ")[0]]

    def are_gone(self, *, but: str = "nothing") -> bool:
        """Return whether all of its processes end within a few seconds."""
        return eventually(lambda: all(but in line for line in self.alive().values()))

    def kill(self) -> None:
        """Kill every process of the command's group, as a power cut would."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.communicate()


def eventually(condition: Callable[[], bool], within_s: float = 20) -> bool:
    """Return whether something comes true within a few seconds."""
    until = time.monotonic() + within_s
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.1)
    return met


def wait_for_rounds(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    table = path / "rounds.csv"
    while not table.exists() or table.read_text().count("\n") <= count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def write_scenario(given: Scenario, folder: Path) -> str:
    (folder / "scenario.yaml").write_text(given.yaml())
    return "scenario.yaml"
