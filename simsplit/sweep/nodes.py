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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from simsplit.engine.cluster import LOOK_S, count_room, list_resources, run_with_cluster
from simsplit.errors import RunError, RunFailedError, ScenarioError, SimsplitError
from simsplit.objects_by_digest import hold
from simsplit.plugins import Origin, gather_again
from simsplit.progress import SweepObserver
from simsplit.results import SweepDirectory
from simsplit.scenario import Cell, Scenario, Sweep, parse
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
    """GPUs of a cell: a part of one, such as 0.25, or a whole number. Cells that share a GPU share
    its memory."""

    def __post_init__(self) -> None:
        """Raise SimsplitError for a number of GPUs that Ray cannot give to one cell."""
        if self.gpus > 1 and self.gpus % 1:
            raise SimsplitError(
                f"--gpus-per-cell: got {self.gpus:g}; allowed: a part of a GPU, such as 0.25, or a "
                "whole number"
            )

    def join(self) -> AbstractContextManager[None]:
        """Join the cluster for a block; blocks within it join nothing anew."""
        return run_with_cluster(self.address, option="--cluster")

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

    def count_cpus(self, scenario: Scenario) -> float:
        """Return the processors that a cell of this scenario takes."""
        return self.cpus if self.cpus is not None else float(scenario.threads or 1)

    def count_room(self, scenarios: Iterable[Scenario]) -> int:
        """Return how many cells of these scenarios can run at a time; the cluster was joined.

        Raises:
            SimsplitError: where no node has what a cell asks for.
        """
        needs = {"CPU": max(map(self.count_cpus, scenarios)), "GPU": self.gpus}
        if room := count_room(needs):
            return room
        nodes = list_resources()
        for option, kind in (("--cpus-per-cell", "CPU"), ("--gpus-per-cell", "GPU")):
            most = max((node.get(kind, 0.0) for node in nodes), default=0.0)
            if (wanted := needs[kind]) > most:
                raise SimsplitError(
                    f"{option}: a cell asks for {wanted:g} {kind}s, and no node of the "
                    f"cluster at {self.address} has more than {most:g}"
                )
        raise SimsplitError(
            f"--gpus-per-cell: a cell asks for {needs['CPU']:g} CPUs and {self.gpus:g} GPUs, and "
            f"no node of the cluster at {self.address} has both"
        )


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
    with cluster.join():
        room = cluster.count_room(cell.scenario for cell in cells)
        jobs = min(room if jobs is None else jobs, len(cells))
        waiting = deque(cells)
        running: dict[Any, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.popleft()
                    watch.start_cell(cell.name)
                    running[_begin(cell, directory, cluster, origins, judges)] = cell.name
                ended = _wait_for_one(running, cluster, cells)
                name = running.pop(ended)
                yield name, _take_home(ended, directory.run_path(name))
        finally:
            for task in running:
                import_module("ray").cancel(task, force=True)


def _wait_for_one(running: Iterable[Any], cluster: Cluster, cells: Sequence[Cell]) -> Any:  # noqa: ANN401 - Ray's
    """Wait until one of these tasks has ended, and return it.

    RunFailedError is raised where all nodes are lost that could hold a cell.
    """
    ray: Any = import_module("ray")
    while not (ended := ray.wait(list(running), timeout=LOOK_S)[0]):
        try:
            cluster.count_room(cell.scenario for cell in cells)
        except SimsplitError as error:
            raise RunFailedError(f"a node was lost, and {error}; what has ended is kept") from None
    return ended[0]


def _begin(
    cell: Cell,
    directory: SweepDirectory,
    cluster: Cluster,
    origins: tuple[Origin, ...],
    judges: Mapping[str, Judge],
) -> Any:  # noqa: ANN401 - a reference of Ray's
    """Give a cell out, and return the reference to its end."""
    ray: Any = import_module("ray")  # half of it has no types
    scenario = cell.scenario.model_copy(update={"engine": cell.scenario.inline_engine})
    task = ray.remote(_train_here).options(
        num_cpus=cluster.count_cpus(cell.scenario), num_gpus=cluster.gpus, max_retries=TRIES - 1
    )
    return task.remote(
        name=cell.name,
        values=scenario.model_dump(mode="json"),
        origins=origins,
        held=collect_held(cell.scenario.data.source, cell.scenario.model),
        judge=judges.get(cell.name),
        earlier=pack(directory.run_path(cell.name)),
        import_path=[os.getcwd(), *sys.path],
    )


def _train_here(
    *,
    name: str,
    values: Mapping[str, Any],
    origins: tuple[Origin, ...],
    held: Mapping[str, object],
    judge: Judge | None,
    earlier: Files,
    import_path: Sequence[str],
) -> tuple[tuple[Any, ...], Files]:
    """Train or resume a cell on this node, from plain values; return its end and its files.

    The working folder is the driver's where this node has it, so that paths to data mean the same.
    """
    if Path(import_path[0]).is_dir():
        os.chdir(import_path[0])
    sys.path.extend(entry for entry in import_path if entry not in sys.path)
    hold(held)
    with tempfile.TemporaryDirectory(prefix="simsplit-cell-") as folder:
        path = Path(folder) / name
        unpack(earlier, path)
        scenario = parse(values, gather_again(origins))
        return tuple(train(scenario, path, judge)), pack(path)


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
