"""A cluster of several nodes that was there before: joined, used, and left as it was."""

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from builders import run_to_end, scenario
from commands import Command, eventually, wait_for_rounds, write_scenario
from comparing import assert_equal
from gists import says

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
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
            nodes.start(f"--address=127.0.0.1:{port}", *each)
            assert eventually(lambda: len(nodes.list_named("raylet")) == 2)
            yield Cluster(nodes, f"127.0.0.1:{port}", secret)
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


def parent(pid: int) -> int:
    """Return a process's parent: of a worker, its node's raylet."""
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])
