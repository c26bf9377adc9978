"""A cluster of several nodes that was there before: joined, used, and left as it was."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from builders import run_to_end, scenario
from commands import Command, eventually, wait_for_rounds, write_scenario
from comparing import assert_equal
from gists import says

from simsplit.foreign import read_facts
from simsplit.scenario import Scenario

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]


@dataclass
class Cluster:
    """Two nodes of one processor each; a joining node must know its token."""

    nodes: Command
    address: str
    secret: dict[str, str]
    second: set[int]
    """The raylet of the node that is not the head."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_nodes(tmp_path_factory) as made:
        yield made


@contextmanager
def run_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex}
    nodes = Command(tmp_path_factory.mktemp("cluster"), ("ray.scripts.scripts", "start"), secret)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    each = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    with tempfile.TemporaryDirectory(prefix="simsplit-test-", dir="/tmp") as folder:
        try:
            head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
            nodes.start(*head, *each)
            assert eventually(lambda: len(nodes.list_named("raylet")) == 1)
            first = set(nodes.list_named("raylet"))
            nodes.start(f"--address=127.0.0.1:{port}", *each)
            assert eventually(lambda: len(nodes.list_named("raylet")) == 2)
            second = set(nodes.list_named("raylet")) - first
            yield Cluster(nodes, f"127.0.0.1:{port}", secret, second)
        finally:
            nodes.kill()


def test_hosts_on_two_nodes(cluster: Cluster, command: Command, tmp_path: Path) -> None:
    nodes, command.environment = cluster.nodes, cluster.secret
    given = scenario(schedule={"rounds": 5}, clients={"heads": "per_client"})
    engine = f"engine={{kind: ray, hosts: 2, address: '{cluster.address}'}}"
    process = command.start(write_scenario(given, tmp_path), "--out", "hosts", "--set", engine)
    wait_for_rounds(tmp_path / "hosts", 1, process)
    hosts = nodes.list_named("ray::Host")
    homes = {parent(pid) for pid in hosts}
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    run_to_end(given, tmp_path / "inline")
    assert_equal(tmp_path / "inline", tmp_path / "hosts")
    assert len(hosts) == 2
    assert homes == set(nodes.list_named("raylet"))
    assert command.are_gone()
    assert eventually(lambda: not nodes.list_named("ray::Host"))
    assert len(nodes.list_named("raylet")) == 2


def test_more_hosts_than_the_nodes_have_room_for(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    """Ray would wait for more nodes until somebody notices."""
    command.environment = cluster.secret
    wanted = f"engine={{kind: ray, hosts: 3, address: '{cluster.address}'}}"
    code, out, err = command.run(write_scenario(scenario(), tmp_path), "--set", wanted)
    assert (code, out) == (2, "")
    assert says(err, "error: scenario.engine.hosts: ... 2 hosts of 1 thread ... 3")


FOUR = "extends: scenario.yaml\nsweep: {seed: [0, 1, 2, 3]}\n"


def write_sweep(given: Scenario, folder: Path) -> Command:
    """Write a sweep of four cells, and return the command that runs it."""
    write_scenario(given, folder)
    (folder / "s.yaml").write_text(FOUR, encoding="utf-8")
    return Command(folder, ("simsplit", "sweep"))


@pytest.mark.slow
def test_a_sweep_of_which_the_command_and_then_a_node_are_killed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """What is home is kept, a lost node's cells are given out again, and all is as here."""
    given = scenario(schedule={"rounds": 60})
    sweep, there = write_sweep(given, tmp_path), tmp_path / "there"
    with run_nodes(tmp_path_factory) as cluster:
        sweep.environment = cluster.secret
        words = ("s.yaml", "--out", "there", "--cluster", cluster.address, "-q")
        process = sweep.start(*words)
        try:
            assert eventually(lambda: len(cluster.nodes.list_named("ray::_train_here")) == 2)
            assert eventually(lambda: list_home(there))
            process.kill()
            process.communicate()
            kept = {name: read_started(there / name) for name in list_home(there)}
            assert len(kept) < 4
            assert eventually(lambda: not cluster.nodes.list_named("ray::_train_here"))
            process = sweep.start(*words, "--resume")
            assert eventually(lambda: len(cluster.nodes.list_named("ray::_train_here")) == 2)
            for raylet in cluster.second:
                os.kill(raylet, signal.SIGKILL)
            _, err = process.communicate(timeout=180)
        finally:
            sweep.kill()
    assert process.returncode == 0, err
    assert {name: read_started(there / name) for name in kept} == kept
    for seed in range(4):
        run_to_end(given.model_copy(update={"seed": seed}), tmp_path / f"here-{seed}")
        assert_equal(tmp_path / f"here-{seed}", there / f"seed={seed}")


def list_home(folder: Path) -> list[str]:
    """List the cells of a sweep whose runs have finished."""
    return [f.parent.name for f in folder.glob("*/summary.json") if '"finished"' in f.read_text()]


def read_started(run: Path) -> str:
    """Read when a run began, which differs if it was trained again."""
    return str(read_facts(run / "environment.json")["started"])


def test_more_than_a_cluster_has_is_refused_before_a_cell_begins(
    cluster: Cluster, tmp_path: Path
) -> None:
    sweep = write_sweep(scenario(device="auto"), tmp_path)
    sweep.environment = cluster.secret
    for option, wanted in (("--gpus-per-cell", "0.25"), ("--cpus-per-cell", "64")):
        code, out, err = sweep.run("s.yaml", "--cluster", cluster.address, option, wanted)
        assert (code, out) == (2, "")
        assert says(err, f"error: {option}: ... {wanted} ... {cluster.address}")
    assert not [*tmp_path.glob("runs/*/seed=*")]


def parent(pid: int) -> int:
    """Return a process's parent: of a worker, its node's raylet."""
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])
