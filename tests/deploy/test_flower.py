"""The Flower app, through a SuperLink and two SuperNodes: it ends as the simulation does."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from builders import run_to_end, scenario
from commands import write_scenario
from deployed import assert_as_inline, free_port

from simsplit.deploy.keys import make_keys

pytestmark = pytest.mark.deploy
APP = Path(__file__).parents[2] / "deploy" / "flower"
SCRIPTS = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}


class Federation:
    """Flower's processes, with a home of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.link = folder, free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(folder / "home")}
        (folder / "home").mkdir()
        connection = f'[superlink.test]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(connection)

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [SCRIPTS / words[0], *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # ended with the processes that Flower starts
            )
        self.started.append(process)
        return process

    def read_logs(self) -> dict[str, str]:
        """Return what was printed, by command."""
        return {log.stem: log.read_text(errors="replace") for log in self.folder.glob("*.log")}

    def stop(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.stop()


def test_as_inline(federation: Federation, tmp_path: Path) -> None:
    given = scenario(clients={"count": 2})
    file, keys, out = (
        tmp_path / write_scenario(given, tmp_path),
        tmp_path / "keys",
        tmp_path / "deployed",
    )
    make_keys(keys, 2, 1)
    at = ("--host", "127.0.0.1", "--port", f"{federation.link}")
    here = "--disable-runtime-dependency-installation"
    federation.start("flower-superlink", "--insecure", *at, here)
    for client in range(2):
        own = f'client={client} keys="{keys}" approve="{file}" out="{out}/client-{client}"'
        address = ("--superlink", f"127.0.0.1:{federation.link}", "--port", f"{free_port()}")
        federation.start("flower-supernode", "--insecure", *address, "--node-config", own)
    door = f"127.0.0.1:{free_port()}"
    run = f'scenario="{file}" keys="{keys}" listen="{door}" address="{door}" out="{out}/run"'
    process = federation.start("flwr", "run", f"{APP}", "test", "--stream", "--run-config", run)
    assert process.wait(580) == 0, federation.read_logs()
    run_to_end(given, tmp_path / "inline")
    assert_as_inline(out, tmp_path / "inline", range(2))
    streamed = federation.read_logs()["flwr"]
    assert "listening on 127.0.0.1" in streamed
    assert len(re.findall(r"node \d+: finished", streamed)) == 2, "both nodes have replied"


def test_a_node_keeps_to_itself_why_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would send an exception's text to the server."""
    monkeypatch.syspath_prepend(APP)
    from simsplit_flower.client_app import take_part

    own = {"client": 0, "keys": "/nowhere/canary", "approve": "mine.yaml"}
    assert take_part({"address": "127.0.0.1:1"}, own) == "failed (RunError)"
    make_keys(tmp_path / "keys", 1, 1)
    facts = {"address": "127.0.0.1:1", "authority": "of another deployment"}
    assert take_part(facts, own | {"keys": tmp_path / "keys"}) == "failed (RunError)"
