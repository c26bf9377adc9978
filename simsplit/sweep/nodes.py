"""A sweep's cells run on the nodes of a Ray cluster, and their run directories come home.

Each cell is a task of Ray's, which finds a node with the processors and GPUs that it asks for. If a
node is lost, Ray gives its cells out again. The nodes share no disk with this machine: a cell's
folder travels to its node, where it is resumed, and back once it has ended.
"""

import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from simsplit.engine.cluster import run_with_cluster
from simsplit.errors import RunError, ScenarioError, SimsplitError
from simsplit.held import hold
from simsplit.plugins import Origin, gather_again
from simsplit.progress import SweepObserver
from simsplit.results import SweepDirectory
from simsplit.scenario import Cell, Sweep, parse
from simsplit.scenario.loading import collect_held
from simsplit.sweep.one_cell import Ended, explain_death, train
from simsplit.sweep.pruning import Judge

Files = Mapping[str, bytes]
"""The files of a run directory, by their names in it."""
TRIES = 4
"""How often a cell is begun whose node or process is lost each time."""
_MOST_FILES, _MOST_BYTES = 10_000, 16 * 2**30


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what each cell takes of it."""

    address: str
    """auto, host:port or ray://host:port."""
    cpus: float | None = None
    """Processors of a cell; None for as many as the threads that its scenario names, or one."""
    gpus: float = 0.0
    """GPUs of a cell, such as 0.25; cells that share one take turns in its memory."""

    def refuse_misfits(self, sweep: Sweep) -> None:
        """Raise an error for cells that cannot run on one node of a cluster."""
        for cell in sweep.cells:
            scenario = cell.scenario
            if scenario.engine.kind == "ray":
                raise ScenarioError(
                    "engine.kind",
                    "got ray, and with --cluster each cell runs on one node; use inline",
                )
            if self.gpus and scenario.device == "cpu":
                raise ScenarioError(
                    "device",
                    f"got cpu, and --gpus-per-cell asks for {self.gpus:g} GPUs; use --device auto",
                )

    def count_cpus(self, cell: Cell) -> float:
        """Return the processors that a cell takes."""
        return self.cpus if self.cpus is not None else float(cell.scenario.threads or 1)


def train_on_cluster(
    sweep: Sweep,
    cells: Sequence[Cell],
    directory: SweepDirectory,
    watch: SweepObserver,
    judges: Mapping[str, Judge],
    *,
    cluster: Cluster,
    jobs: int | None,
) -> Iterator[tuple[str, Ended]]:
    """Train cells on a cluster, at most `jobs` at a time, and yield their ends as they come."""
    origins = sweep.plugins.require_portable()
    with run_with_cluster(cluster.address, option="--cluster"):
        ray: Any = import_module("ray")
        room = _count_room(cluster, cells, ray.cluster_resources())
        jobs = min(room if jobs is None else jobs, len(cells))
        waiting = deque(cells)
        running: dict[Any, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.popleft()
                    running[_begin(cell, directory, cluster, origins, judges)] = cell.name
                    watch.start_cell(cell.name)
                (ended,), _ = ray.wait(list(running))
                name = running.pop(ended)
                yield name, _take_home(ended, directory.run_path(name))
        finally:
            for task in running:
                ray.cancel(task, force=True)


def _count_room(cluster: Cluster, cells: Sequence[Cell], free: Mapping[str, float]) -> int:
    """Return how many cells a cluster has room for; raise SimsplitError if for none."""
    cpus = max(map(cluster.count_cpus, cells))
    counts = []
    for option, wanted, kind in (
        ("--cpus-per-cell", cpus, "CPU"),
        ("--gpus-per-cell", cluster.gpus, "GPU"),
    ):
        has = free.get(kind, 0.0)
        if wanted > has:
            raise SimsplitError(
                f"{option}: a cell asks for {wanted:g} {kind}s, and the cluster at "
                f"{cluster.address} has {has:g}"
            )
        if wanted:
            counts.append(int(has / wanted))
    return min(counts, default=len(cells))


def _begin(
    cell: Cell,
    directory: SweepDirectory,
    cluster: Cluster,
    origins: tuple[Origin, ...],
    judges: Mapping[str, Judge],
) -> Any:  # noqa: ANN401 - a reference of Ray's
    """Give a cell out, and return the reference to its end."""
    ray: Any = import_module("ray")  # half of it has no types
    rest = "disk" if cell.scenario.rests_on_disk else "memory"
    engine = {"engine": {"kind": "inline", "rest": rest}}
    values = cell.scenario.model_dump(mode="json") | engine
    task = ray.remote(_train_here).options(
        num_cpus=cluster.count_cpus(cell), num_gpus=cluster.gpus, max_retries=TRIES - 1
    )
    order = _Order(
        cell.name,
        values,
        origins,
        dict(collect_held(cell.scenario.data.source, cell.scenario.model)),
        judges.get(cell.name),
        pack(directory.run_path(cell.name)),
        [os.getcwd(), *sys.path],
    )
    return task.remote(order)


@dataclass(frozen=True)
class _Order:
    """What a node needs to train a cell, in plain values."""

    name: str
    values: Mapping[str, Any]
    """The scenario's fields."""
    origins: tuple[Origin, ...]
    """The origins of its plugins."""
    held: Mapping[str, object]
    """Objects that were passed from Python, by their digests."""
    judge: Judge | None
    earlier: Files
    """The cell's folder, if it was begun before."""
    import_path: Sequence[str]
    """The driver's working folder, and where it imports from."""


def _train_here(order: _Order) -> tuple[tuple[Any, ...], Files]:
    """Train or resume a cell on this node; return its end and its files.

    The working folder is the driver's where this node has it, so that paths to data mean the same.
    """
    if Path(order.import_path[0]).is_dir():
        os.chdir(order.import_path[0])
    sys.path.extend(entry for entry in order.import_path if entry not in sys.path)
    hold(order.held)
    with tempfile.TemporaryDirectory(prefix="simsplit-cell-") as folder:
        path = Path(folder) / order.name
        unpack(order.earlier, path)
        scenario = parse(order.values, gather_again(order.origins))
        return tuple(train(scenario, path, order.judge)), pack(path)


def _take_home(task: Any, path: Path) -> Ended:  # noqa: ANN401 - a reference of Ray's
    """Put the files of a cell that has ended into its folder, and return its end."""
    ray: Any = import_module("ray")
    try:
        ended, files = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        return Ended(str(error.cause))
    except ray.exceptions.RayError as error:
        return Ended(explain_death(str(error)))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".arriving-") as folder:
        arrived = Path(folder) / path.name
        try:
            unpack(files, arrived)
        except RunError as error:
            return Ended(f"its node sent {error}")
        if arrived.exists():
            shutil.rmtree(path, ignore_errors=True)
            arrived.rename(path)
    return Ended(*ended)


def pack(path: Path) -> dict[str, bytes]:
    """Return the files of a run directory; none where there is no directory."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def unpack(files: Files, path: Path) -> None:
    """Write the files of a run directory; raise RunError for what no run directory has."""
    if len(files) > _MOST_FILES or sum(map(len, files.values())) > _MOST_BYTES:
        raise RunError(f"{len(files)} files, more than a run has")
    for name in files:
        parts = PurePosixPath(name).parts
        plain = parts and not any(
            part in ("..", "/") or "\\" in part or ":" in part or "\0" in part for part in parts
        )
        if not plain:
            raise RunError(f"the file {name[:80]!r}, which no run has")
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
