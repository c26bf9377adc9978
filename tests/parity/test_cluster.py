"""A cluster of several nodes that was there before: joined, used, and left as it was."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from builders import TINY, run_to_end, scenario
from commands import Command, eventually, wait_for_rounds, write_scenario
from comparing import assert_equal
from gists import says

from simsplit.foreign import read_facts
from simsplit.scenario import Scenario

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]


PROMPT = {"RAY_health_check_period_ms": "1000"}
"""Ray notices a lost node within seconds; by default it takes a quarter of a minute."""
LONG_S = 900.0
"""The limit for what imports torch in several processes at once, in seconds."""


@dataclass
class Cluster:
    """Two nodes of one processor each, the first with a GPU that is not there.

    A joining node must know its token.
    """

    nodes: Command
    address: str
    secret: dict[str, str]
    first: int
    """The raylet of the head."""
    options: Sequence[str]
    """The options of each node."""

    def mend(self) -> None:
        """Start a second node where a test has killed it."""
        if len(list_raylets(self.nodes)) < 2:
            self.nodes.start(f"--address={self.address}", *self.options)
            assert eventually(lambda: len(list_raylets(self.nodes)) == 2, LONG_S)

    def kill_second(self) -> None:
        """Kill the node that is not the head, and what runs on it."""
        for raylet in list_raylets(self.nodes) - {self.first}:
            os.kill(raylet, signal.SIGKILL)


def list_raylets(nodes: Command) -> set[int]:
    """List the raylets of nodes."""
    return list_programs(nodes, "raylet")


def list_programs(nodes: Command, name: str) -> set[int]:
    """List the processes of this name, without what they forked and will be another program."""
    found = set(nodes.list_named(name))
    return {pid for pid in found if parent(pid) not in found}


@pytest.fixture(scope="module")
def all_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_nodes(tmp_path_factory) as made:
        yield made


@pytest.fixture
def cluster(all_nodes: Cluster) -> Cluster:
    """Two nodes, whatever the test before this one did to them."""
    all_nodes.mend()
    return all_nodes


@contextmanager
def run_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex}
    start = ("ray.scripts.scripts", "start")
    nodes = Command(tmp_path_factory.mktemp("cluster"), start, {**secret, **PROMPT})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    each = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    with tempfile.TemporaryDirectory(prefix="simsplit-test-", dir="/tmp") as folder:
        try:
            head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
            nodes.start(*head, *each, "--num-gpus=1")
            assert eventually(lambda: len(list_raylets(nodes)) == 1, LONG_S)
            (first,) = list_raylets(nodes)
            made = Cluster(nodes, f"127.0.0.1:{port}", secret, first, each)
            made.mend()
            yield made
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
    assert homes == list_raylets(nodes)
    assert command.are_gone()
    assert eventually(lambda: not nodes.list_named("ray::Host"))
    assert len(list_raylets(nodes)) == 2


@pytest.mark.slow
def test_a_run_on_two_nodes_of_which_the_command_and_then_a_node_are_killed(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    """Each ends at a checkpoint, and what goes on from it on the nodes that are left is equal."""
    command.environment = cluster.secret
    given = scenario(schedule={"rounds": 60}, clients={"heads": "per_client"})
    words = [write_scenario(given, tmp_path), "--out", "hosts", "--set"]
    engine = f"engine={{kind: ray, hosts: %d, address: '{cluster.address}'}}"
    process = command.start(*words, engine % 2)
    wait_for_rounds(tmp_path / "hosts", 2, process)  # then the first has a checkpoint
    process.kill()
    process.communicate()
    killed_at = count_rounds(tmp_path / "hosts")
    process = command.start(*words, engine % 2, "--resume")
    wait_for_rounds(tmp_path / "hosts", killed_at + 2, process)
    cluster.kill_second()
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 1, err
    assert says(err, "error: ... host ... room for 1 host of 1 thread ... --resume ... hosts: 1")
    lost_at = count_rounds(tmp_path / "hosts")
    assert killed_at < lost_at < 60
    code, _, err = command.run(*words, engine % 1, "--resume", within_s=LONG_S)
    assert code == 0, err
    run_to_end(given, tmp_path / "inline")
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


def count_rounds(run: Path) -> int:
    """Count the rounds of the last checkpoint."""
    return max(int(folder.name[6:]) for folder in (run / "checkpoints").glob("round-*"))


def test_more_hosts_than_the_nodes_have_room_for(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    """Ray would wait for more nodes until somebody notices."""
    command.environment = cluster.secret
    wanted = f"engine={{kind: ray, hosts: 3, address: '{cluster.address}'}}"
    code, out, err = command.run(write_scenario(scenario(), tmp_path), "--set", wanted)
    assert (code, out) == (2, "")
    assert says(err, "error: scenario.engine.hosts: ... 2 hosts of 1 thread ... 3")


def write_sweep(given: Scenario, folder: Path, seeds: int = 4) -> Command:
    """Write a sweep of one cell for each seed, and return the command that runs it."""
    write_scenario(given, folder)
    cells = f"extends: scenario.yaml\nsweep: {{seed: {[*range(seeds)]}}}\n"
    (folder / "s.yaml").write_text(cells, encoding="utf-8")
    return Command(folder, ("simsplit", "sweep"))


def test_cells_that_ask_for_half_a_gpu_run_two_at_a_time_where_a_node_has_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Ray sees to it, for all five are given out; processors would be there for twenty."""
    given = scenario(device="auto")  # without a GPU that is there: the CPU
    sweep, there = write_sweep(given, tmp_path, seeds=5), tmp_path / "there"
    sweep.environment = cluster.secret
    shares = ("--cpus-per-cell", "0.1", "--gpus-per-cell", "0.5", "--jobs", "5")
    process = sweep.start("s.yaml", "--out", "there", "--cluster", cluster.address, *shares, "-q")
    most, homes, until = 0, set[int](), time.monotonic() + LONG_S
    try:
        while process.poll() is None and time.monotonic() < until:
            running = list_cells(cluster)
            most = max(most, len(running))
            homes |= {parent(pid) for pid in running}
            time.sleep(0.05)
        _, err = process.communicate(timeout=1)
    finally:
        sweep.kill()
    assert process.returncode == 0, err
    assert most == 2
    assert homes - {0} == {cluster.first}  # 0: ended meanwhile
    for seed in range(5):
        run_to_end(given.model_copy(update={"seed": seed}), tmp_path / f"here-{seed}")
        assert_equal(tmp_path / f"here-{seed}", there / f"seed={seed}")


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
            assert eventually(lambda: count_tasks(cluster) == 2, LONG_S)
            assert eventually(lambda: list_home(there), LONG_S)
            process.kill()
            process.communicate()
            kept = {name: read_started(there / name) for name in list_home(there)}
            assert len(kept) < 4
            assert eventually(lambda: not count_tasks(cluster))
            process = sweep.start(*words, "--resume")
            assert eventually(lambda: count_tasks(cluster) == 2, LONG_S)
            cluster.kill_second()
            _, err = process.communicate(timeout=180)
        finally:
            sweep.kill()
    assert process.returncode == 0, err
    assert {name: read_started(there / name) for name in kept} == kept
    for seed in range(4):
        run_to_end(given.model_copy(update={"seed": seed}), tmp_path / f"here-{seed}")
        assert_equal(tmp_path / f"here-{seed}", there / f"seed={seed}")


def count_tasks(cluster: Cluster) -> int:
    """Count the cells that are trained on the nodes."""
    return len(list_cells(cluster))


def list_cells(cluster: Cluster) -> set[int]:
    """List the workers that train a cell; Ray names them so until the cell has ended."""
    return list_programs(cluster.nodes, "ray::_train_here")


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
    # each processor is of another node, and a cell lies on one
    for option, wanted, most in (("--gpus-per-cell", "2", "1"), ("--cpus-per-cell", "2", "1")):
        code, out, err = sweep.run("s.yaml", "--cluster", cluster.address, option, wanted)
        assert (code, out) == (2, "")
        assert says(err, f"error: {option}: ... {wanted} ... {cluster.address} ... {most}")
    assert not [*tmp_path.glob("runs/*/seed=*")]


def test_what_a_cluster_lacks_is_refused_before_a_row_is_measured(
    cluster: Cluster, tiny_board: Command, tmp_path: Path
) -> None:
    tiny_board.environment = cluster.secret
    code, out, err = tiny_board.run("--cluster", cluster.address, "--gpus-per-cell", "2")
    assert (code, out) == (2, "")
    assert says(err, f"error: --gpus-per-cell: ... 2 ... {cluster.address} ... 1")
    assert not (tmp_path / "runs").exists()


TRACK = {
    "title": "Tiny",
    "says": "what does it cost?",
    "utility": {"is": "test_accuracy", "at": "last", "times": 100, "unit": "points"},
    "leak": {"called": "bytes", "figures": ["bytes_total"], "floor": 0, "ceiling": "undefended"},
    "scenario": {name: value for name, value in TINY.items() if name != "name"},
    "tiers": {"quick": {"seeds": [0, 1, 2, 3, 4], "takes_min": 0.01}},
    "defences": {"none": {"none": []}},
}
BOARD = """
from pathlib import Path

from simsplit.boards import track
from simsplit.evidence import evidence_tables

track.list_tracks = lambda: {"tiny": Path("tiny.yaml")}
evidence_tables.find_shipped_results = lambda: Path("none")
if __name__ == "__main__":
    from simsplit.__main__ import main

    main()
"""


@pytest.fixture
def tiny_board(tmp_path: Path) -> Iterator[Command]:
    """A track of one defence and five seeds, and the command that measures it."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TRACK), encoding="utf-8")
    (tmp_path / "tiny_board.py").write_text(BOARD, encoding="utf-8")
    made = Command(tmp_path, ("tiny_board", "board", "tiny"))
    yield made
    made.kill()


def parent(pid: int) -> int:
    """Return a process's parent: of a worker, its node's raylet; 0 if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
