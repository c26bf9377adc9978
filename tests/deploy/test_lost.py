"""Whoever is lost, at whatever moment: the run goes on, and ends as if nothing had happened."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from builders import TINY, run_to_end
from commands import Command, wait_for_rounds, write_scenario
from deployed import Deployment, assert_as_inline, free_port
from finished import FinishedRuns
from gists import says

from simsplit.progress import Observer, RoundEnded
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
SIGN = Path(__file__).parents[2] / "examples" / "plugins" / "sign.py"
MOMENTS = {
    "smashed": ("Begin", "", 4),
    "features": ("Proceed", "features", 4),
    "smashed_grad": ("Proceed", "smashed_grad", 4),
    "handover": ("HandOver", "", 3),
    "receive": ("Receive", "", 3),
    "report": ("ReportRound", "", 1),
    "evaluation": ("Note", "features", 1),
    "checkpoint": ("keep", "", 1),
    "the very first": ("Hear", "", 0),
}


def scenario(**changes: object) -> Scenario:
    return parse(merge(merge(TINY, {"clients": {"count": 2}}), changes))


@pytest.fixture(scope="module")
def inline(finished: FinishedRuns) -> Path:
    return finished(scenario())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_client_at_each_leg(
    moment: str, deployment: Deployment, inline: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    deployment.run(scenario(), tmp_path, breaks={1: MOMENTS[moment]}, say=lines.append)
    assert any(text.startswith("client 1 has gone") for text in lines), "it was never cut off"
    assert deployment.ends(2) == ["finished", "CutOff: "]
    assert deployment.clients[1].came_to() == "finished"
    assert_as_inline(tmp_path, inline, range(2))


def test_a_client_as_the_run_is_resumed(
    deployment: Deployment, finished: FinishedRuns, tmp_path: Path
) -> None:
    deployment.run(scenario(), tmp_path)
    lines: list[str] = []
    longer = scenario(schedule={"rounds": 3})
    breaks = {1: ("back_to", "", 0)}
    deployment.run(longer, tmp_path, resume=True, breaks=breaks, say=lines.append)
    assert any(text.startswith("client 1 has gone") for text in lines), "it was never cut off"
    assert_as_inline(tmp_path, finished(longer), range(2))


def test_averages_go_on(deployment: Deployment, finished: FinishedRuns, tmp_path: Path) -> None:
    given = scenario(aggregation={"kind": "splitfed_v1", "bits": 8}, clients={"count": 2})
    deployment.run(given, tmp_path / "run", breaks={0: ("Proceed", "smashed_grad", 5)})
    assert deployment.clients[0].came_to() == "CutOff: "
    assert deployment.ends(2) == ["finished", "finished"]
    assert_as_inline(tmp_path / "run", finished(given), range(2))


def test_a_failed_test_costs_no_other_test_its_clients(
    deployment: Deployment, tmp_path: Path
) -> None:
    """It leaves one client at work, and does not read how another has ended."""
    idle = deployment.clients[2].process
    deployment.start(scenario(), 0, f"127.0.0.1:{free_port()}", tmp_path)
    deployment.start(scenario(), 1, "no address", tmp_path, resume=True)
    deployment.restart_busy()
    assert not any(client.pipe.poll(0) for client in deployment.clients)
    assert deployment.clients[2].process is idle
    deployment.run(scenario(schedule={"rounds": 1}), tmp_path / "next")
    assert deployment.ends(2) == ["finished", "finished"]


class Stops(Observer):
    """Stops a client's process after the first round, as a machine that sleeps."""

    def __init__(self, process: BaseProcess) -> None:
        self.process, self.stopped = process, False

    def round(self, ended: RoundEnded) -> None:
        if ended.number == 1:
            os.kill(self.process.pid or 0, signal.SIGSTOP)
            self.stopped = True

    def wakes(self, text: str) -> None:
        if self.stopped and text.startswith("client 1 has gone"):
            os.kill(self.process.pid or 0, signal.SIGCONT)


def test_a_client_that_stalls(deployment: Deployment, inline: Path, tmp_path: Path) -> None:
    """Past the deadline it counts as lost; when it wakes it comes back by itself, late."""
    lines: list[str] = []
    sleeper = Stops(deployment.clients[1].process)

    def hear(text: str) -> None:
        lines.append(text)
        sleeper.wakes(text)

    deployment.run(scenario(), tmp_path, say=hear, observers=[sleeper], deadline_s=8)
    assert any(says(text, "client 1 has gone: ... 8 s") for text in lines), lines
    assert deployment.ends(2) == ["finished", "finished"]
    assert_as_inline(tmp_path, inline, range(2))


class TestProcesses:
    """Three terminals, as README has them."""

    @pytest.fixture
    def command(self, tmp_path: Path) -> Iterator[Command]:
        made = Command(tmp_path, program=("simsplit",))
        yield made
        made.kill()

    @pytest.fixture
    def prepared(self, command: Command) -> str:
        """Keys, a scenario long enough to be interrupted, and the server's address."""
        given = scenario(schedule={"rounds": 60})
        assert command.run("deploy", "keys", "keys", "--clients", "2")[0] == 0
        run_to_end(given, command.folder / "inline")
        write_scenario(given, command.folder)
        return f"127.0.0.1:{free_port()}"

    def serve(self, command: Command, address: str, *more: str) -> "subprocess.Popen[str]":
        words = ("--listen", address, "--keys", "keys", "--out", "run", "--quiet", *more)
        return command.start("serve", "scenario.yaml", *words)

    def join(
        self, command: Command, address: str, client: int, *more: str
    ) -> "subprocess.Popen[str]":
        words = (address, "--client", str(client), "--keys", "keys", "--out", f"c{client}")
        return command.start("join", *words, "--approve", "scenario.yaml", *more)

    def test_a_client_and_the_server_killed(self, command: Command, prepared: str) -> None:
        """kill -9 of a client, then of the server, then Ctrl-C at both; each comes back."""
        folder = command.folder
        server = self.serve(command, prepared)
        first, second = (self.join(command, prepared, number) for number in range(2))
        wait_for_rounds(folder / "run", 2, server)
        second.kill()
        second = self.join(command, prepared, 1, "--resume")
        wait_for_rounds(folder / "run", 5, server)
        server.kill()
        server = self.serve(command, prepared, "--resume")
        wait_for_rounds(folder / "run", 8, server)
        for process in (server, first):
            process.send_signal(signal.SIGINT)
        assert server.wait(120) == first.wait(120) == 130
        assert "simsplit serve" in server.communicate()[1]
        assert "simsplit join" in first.communicate()[1]
        server = self.serve(command, prepared, "--resume")
        first = self.join(command, prepared, 0, "--resume")
        for process in (server, first, second):
            assert process.wait(240) == 0, process.communicate()
        for table in ("rounds", "clients", "wire"):
            one, other = (folder / place / f"{table}.csv" for place in ("run", "inline"))
            assert one.read_text() == other.read_text()

    def test_a_method_of_a_plugin(self, command: Command) -> None:
        """All three parties name its file; without it a server does not know the method."""
        folder, address = command.folder, f"127.0.0.1:{free_port()}"
        plugin = folder / "sign.py"
        shutil.copy(SIGN, plugin)
        changes = {"clients": {"count": 2}, "method": [{"kind": "sign"}]}
        run_to_end(parse(merge(TINY, changes), plugin), folder / "inline")
        write_scenario(parse(merge(TINY, changes), plugin), folder)
        assert command.run("deploy", "keys", "keys", "--clients", "2")[0] == 0
        with_it = ("--plugin", "sign.py")
        server = self.serve(command, address, *with_it)
        clients = [self.join(command, address, number, *with_it) for number in range(2)]
        for process in (server, *clients):
            assert process.wait(240) == 0, process.communicate()
        for table in ("rounds", "clients", "wire"):
            one, other = (folder / place / f"{table}.csv" for place in ("run", "inline"))
            assert one.read_text() == other.read_text()
        assert self.serve(command, address, "--resume").wait(60) == 2
