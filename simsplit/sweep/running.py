"""A sweep's cells run one by one in this process, or several at a time in worker processes.

A cell is an ordinary run in its own folder. So it can be resumed, and its tables do not depend on
the cells that ran at the same time. If a cell fails, its reason is saved and the others go on.
"""

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simsplit.engine.cluster import (
    LOOK_S,
    SMALL_STORE_BYTES,
    end_actors,
    refuse_dead_node,
    run_with_cluster,
)
from simsplit.errors import format_count, format_list
from simsplit.hosting import STORE_BYTES, choose_engine, keep_hosts
from simsplit.objects_by_digest import hold
from simsplit.opened_run import OpenedRun
from simsplit.plugins import Origin, gather_again
from simsplit.progress import SweepObserver
from simsplit.results import SweepDirectory
from simsplit.results.environment import describe_process
from simsplit.results.locking import lock
from simsplit.scenario import Cell, Sweep, parse
from simsplit.scenario.findings import Occasion
from simsplit.scenario.loading import collect_held
from simsplit.scenario.refusals import refuse
from simsplit.showing import show_sweep
from simsplit.sweep import plan
from simsplit.sweep.nodes import Cluster, train_on_cluster
from simsplit.sweep.one_cell import Ended, explain_death, train
from simsplit.sweep.pruning import Judge
from simsplit.sweep.searching import run_search

Endings = Iterator[tuple[str, Ended]]


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep's finished cells, and the reasons of its failed ones."""

    path: Path
    runs: Mapping[str, OpenedRun]
    """Runs of the cells that finished, now or before, in the sweep's order."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Reasons of the failed cells, by cell."""
    pruned: Mapping[str, str] = field(default_factory=dict)
    """Reasons of the cells that a search gave up, by cell."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: each cell's summary, or its reason if it failed."""
        finished = {name: run.summary for name, run in self.runs.items()}
        failed = {name: {"status": "failed", "reason": why} for name, why in self.failed.items()}
        pruned = {name: {"status": "pruned", "reason": why} for name, why in self.pruned.items()}
        return {"path": str(self.path), "cells": {**finished, **pruned, **failed}}

    def why(self) -> str:
        """Return lines on the failed cells, one for each reason."""
        alike: dict[str, list[str]] = {}
        for name, reason in self.failed.items():
            alike.setdefault(reason.splitlines()[0], []).append(name)
        lines = [f"  {format_list(names, 4)}: {reason}" for reason, names in alike.items()]
        count = format_count(len(self.failed) + len(self.pruned) + len(self.runs), "cell")
        return "\n".join([f"{len(self.failed)} of {count} failed", *lines])


def run_sweep(
    sweep: Sweep,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    resume: bool = False,
    watch: SweepObserver | None = None,
    progress: bool = False,
    cluster: Cluster | None = None,
) -> SweepResult:
    """Train every cell of a sweep into a directory of run directories.

    Args:
        sweep: From `load_sweep`.
        out: The sweep directory; by default a fresh one named after the sweep.
        jobs: How many cells run at a time; more than one run in worker processes. By default as
            many as there are processors for the cells' `threads`, or one if those are not set.
        resume: Whether to keep the directory's finished cells and to resume the others.
        watch: An observer of the sweep's progress.
        progress: Whether to show on stderr how the sweep goes on, as the command does.
        cluster: The Ray cluster on whose nodes cells run; None for this machine.

    >>> run_sweep(load_sweep("file.yaml"), "runs/swept", jobs=2)  # doctest: +SKIP
    """
    if progress and watch is None:
        with show_sweep() as shown:
            return run_sweep(sweep, out, jobs=jobs, resume=resume, watch=shown, cluster=cluster)
    for cell in sweep.cells:
        refuse(Occasion.PACKAGES, cell.scenario)
    if cluster is not None:
        cluster.refuse_misfits(sweep)
    path = plan.choose_sweep_directory(sweep, out, resume=resume)
    with lock(path):
        plan.refuse_overwriting(sweep, path, resume=resume)
        begun: set[str] = set()
        watch = watch or SweepObserver()
        train = partial(_train_cells, path=path, watch=watch, begun=begun, cluster=cluster)
        if sweep.search is None:
            return _collect_result(sweep, train(sweep, jobs=jobs))
        jobs = plan.choose_jobs(sweep) if jobs is None else jobs
        on = partial(train, jobs=jobs)
        sweep = run_search(
            sweep, path, jobs, lambda now, batches, judges: on(now, batches=batches, judges=judges)
        )
        return _collect_result(sweep, SweepDirectory.load(path))


def _train_cells(
    sweep: Sweep,
    *,
    path: Path,
    jobs: int | None,
    watch: SweepObserver,
    begun: set[str],
    cluster: Cluster | None,
    batches: Sequence[int] = (),
    judges: Mapping[str, Judge] = MappingProxyType({}),
) -> SweepDirectory:
    """Train the cells that are not finished, and return the directory.

    A search calls this with more and more cells; `begun` has the names of those that the observer
    knows already.
    """
    directory = plan.open_directory(sweep, path)
    # while a search is read again, its later batches are known from before
    directory.batches = [*batches, *directory.batches[len(batches) :]]
    todo = plan.list_unfinished(sweep, directory)
    here = min(plan.choose_jobs(sweep) if jobs is None else jobs, max(1, len(todo)))
    directory.process = {**describe_process(), "command": sys.argv}
    directory.save()
    # What an earlier call has trained is not tried again, though it may have failed.
    todo = [cell for cell in todo if cell.name not in begun]
    fresh = [cell for cell in sweep.cells if cell.name not in begun]
    names = [cell.name for cell in fresh]
    for cell in todo if cluster is None else ():
        cell.scenario.model.make_ready()  # here, where its progress is seen
    if begun:
        watch.grow(names)
    else:
        watch.begin(directory.path, names, here if cluster is None else jobs or 1)
    begun.update(names)
    for cell in fresh:
        if cell not in todo:
            directory.note(cell.name, None)  # a worker that was given up may have ended its run
            watch.end_cell(cell.name, "pruned" if directory.is_pruned(cell.name) else "kept")
    if cluster is not None and todo:
        endings = train_on_cluster(
            sweep, todo, directory, watch, judges, cluster=cluster, jobs=jobs
        )
    elif here == 1:
        endings = _train_in_turn(todo, directory, watch, judges)
    else:
        endings = _train_in_workers(sweep, todo, directory, watch, judges, jobs=here)
    _note_ends(endings, directory, watch)
    return directory


def _note_ends(endings: Endings, directory: SweepDirectory, watch: SweepObserver) -> None:
    """Note how each cell ends, as it does."""
    warned: set[str] = set()
    for name, ended in endings:
        directory.note(name, None if ended.pruned else ended.reason)
        for message in ended.warnings:
            if message not in warned:  # most warnings concern all cells alike
                watch.warn(f"{name}: {message}")
            warned.add(message)
        watch.end_cell(name, ended.status, ended.reason or "")


def _collect_result(sweep: Sweep, directory: SweepDirectory) -> SweepResult:
    failed = {c.name: directory.failed[c.name] for c in sweep.cells if c.name in directory.failed}
    runs = {
        cell.name: OpenedRun.load(directory.run_path(cell.name), sweep.plugins)
        for cell in sweep.cells
        if cell.name not in failed
    }
    pruned = {
        name: run.summary.get("reason", "")
        for name, run in runs.items()
        if run.summary["status"] == "pruned"
    }
    finished = {name: run for name, run in runs.items() if name not in pruned}
    return SweepResult(directory.path, finished, failed, pruned)


def _train_in_turn(
    cells: Sequence[Cell],
    directory: SweepDirectory,
    watch: SweepObserver,
    judges: Mapping[str, Judge],
) -> Endings:
    """Train one cell after the other in this process, and yield their ends."""
    with keep_hosts():
        for cell in cells:
            watch.start_cell(cell.name)
            path = directory.run_path(cell.name)
            yield cell.name, train(cell.scenario, path, judges.get(cell.name))


def _train_in_workers(
    sweep: Sweep,
    cells: Sequence[Cell],
    directory: SweepDirectory,
    watch: SweepObserver,
    judges: Mapping[str, Judge],
    *,
    jobs: int,
) -> Endings:
    """Train `jobs` cells at a time in workers that live as long as the sweep; yield their ends."""
    waiting = deque(cells)
    inline = all(choose_engine(cell.scenario)[0] is None for cell in cells)
    store = SMALL_STORE_BYTES if inline else STORE_BYTES
    origins = sweep.plugins.require_portable()
    with run_with_cluster(None, jobs, store), closing(_Workers(origins)) as workers:
        while waiting or workers.busy:
            while waiting and len(workers.busy) < jobs:
                cell = waiting.popleft()
                workers.begin(cell, directory.run_path(cell.name), judges.get(cell.name))
                watch.start_cell(cell.name)
            yield workers.wait()


class Worker:
    """A process that trains one cell after another; Ray makes an actor of it.

    It receives plain values only: a scenario's class may have been made at run time, for plugins,
    and cannot be pickled.
    """

    def __init__(self, folder: str, import_path: Sequence[str]) -> None:
        """Work in the sweep's folder, and import from the sweep's import path."""
        os.chdir(folder)
        self.hosts = keep_hosts()  # for as long as this process lives
        self.hosts.__enter__()
        sys.path.extend(entry for entry in import_path if entry not in sys.path)

    def train(
        self,
        values: Mapping[str, Any],
        origins: tuple[Origin, ...],
        path: str,
        held: Mapping[str, object],
        judge: Judge | None = None,
    ) -> tuple[Any, ...]:
        """Train a cell as `train` does, from plain values; `held` was passed from Python."""
        hold(held)
        return tuple(train(parse(values, gather_again(origins)), Path(path), judge))


class _Workers:
    """Worker processes, which are made when none is free, reused, and replaced if one dies."""

    def __init__(self, origins: tuple[Origin, ...]) -> None:
        import ray

        self.ray, self.origins = ray, origins
        # Ray charges nothing for a worker: `jobs` limits them, and they share processors and GPU.
        self.actor: Any = ray.remote(num_cpus=0, num_gpus=0)(Worker)
        self.free: list[Any] = []
        self.busy: dict[Any, tuple[Any, str]] = {}
        self.sent: dict[tuple[str, ...], Any] = {}

    def begin(self, cell: Cell, path: Path, judge: Judge | None) -> None:
        """Have a free or a new worker train a cell."""
        folder = os.getcwd()
        worker = self.free.pop() if self.free else self.actor.remote(folder, [folder, *sys.path])
        values = cell.scenario.model_dump(mode="json")
        scenario = cell.scenario
        held = collect_held(scenario.data.source, scenario.model)
        if (key := tuple(held)) not in self.sent:  # once for all cells that share them
            self.sent[key] = self.ray.put(held)
        task = worker.train.remote(
            values, self.origins, str(path.absolute()), self.sent[key], judge
        )
        self.busy[task] = worker, cell.name

    def wait(self) -> tuple[str, Ended]:
        """Wait for a cell to end, and return its name and its end."""
        while not (done := self.ray.wait(list(self.busy), timeout=LOOK_S)[0]):
            refuse_dead_node()  # Ray ends its drivers when it is gone
        (task,) = done
        worker, cell = self.busy.pop(task)
        try:
            ended = Ended(*self.ray.get(task))
        except self.ray.exceptions.RayTaskError as error:
            ended = Ended(str(error.cause))
        except self.ray.exceptions.RayError as error:
            refuse_dead_node()  # a new worker would be waited for without end
            return cell, Ended(explain_death(str(error)))
        self.free.append(worker)
        return cell, ended

    def close(self) -> None:
        """Kill all workers at once; a cell that is killed can be resumed from its folder."""
        end_actors((*self.free, *(worker for worker, _ in self.busy.values())))
