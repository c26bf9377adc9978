"""Measure who helps and who hurts in a finished run: `simsplit clients`, and in Python.

What it costs is said before anything trains.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, SimsplitError, format_list, suggest
from simsplit.machine import pin_threads
from simsplit.metrics import find_headline
from simsplit.plugins import Given
from simsplit.results import SCENARIO, Run
from simsplit.results.directory import CONTRIBUTIONS, encode_csv, make_folder, replace, writing
from simsplit.results.locking import lock
from simsplit.scenario import Scenario, load_scenario
from simsplit.scenario.loading import pass_again
from simsplit.valuing.coalitions import Coalitions
from simsplit.valuing.estimating import (
    ClientEffect,
    Members,
    Scores,
    compute_shapley,
    is_exact,
    leave_one_out,
    list_coalitions,
    measure_noise,
    sample_shapley,
)

if TYPE_CHECKING:
    import pandas as pd

LEAVE_OUT, SHAPLEY = "leave-out", "shapley"
Tell = Callable[[str], None]
Progress = Callable[[str, int, int], None]


def _ignore(*_: object) -> None:
    """Take a message that nobody wants."""


@dataclass(frozen=True)
class Wanted:
    """What is to be measured; raise SimsplitError for numbers that it cannot have."""

    leave_out: bool = True
    orders: int = 0
    """The number of orders for Shapley values; 0: none are wanted."""
    seeds: tuple[int, ...] = ()
    start: int = 0
    """The round from whose checkpoint coalitions go on; 0: they train from the beginning."""
    column: str | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not math.isfinite(self.tolerance):
            raise SimsplitError(f"tolerance must be a finite number, got {self.tolerance}")
        if self.orders < 0:
            raise SimsplitError(f"shapley takes a number of orders, got {self.orders}")


def value_clients(
    run: Run | str | Path,
    *,
    leave_out: bool = True,
    shapley: int = 0,
    seeds: Sequence[int] = (),
    from_round: int = 0,
    score: str | None = None,
    tolerance: float | None = None,
    data: Any = None,  # noqa: ANN401 - many forms
    model: Any = None,  # noqa: ANN401
    plugins: Given = (),
    tell: Tell = _ignore,
    progress: Progress = _ignore,
    **columns: Any,  # noqa: ANN401
) -> "pd.DataFrame":
    """Measure what each client of a finished run changes of its final score; above 0 it helps.

    Args:
        run: A finished run, or its directory.
        leave_out: Whether to train without each client in turn.
        shapley: The number of orders from which to estimate Shapley values; 0: none. They are exact
            if there are no more orders than that.
        seeds: Seeds to train with, over which intervals are; by default the run's own, with
            intervals over evaluation samples. Clients keep their data.
        from_round: The round from whose checkpoint coalitions go on; 0: they train anew.
        score: A column of `rounds`; by default test accuracy, or what the run has in its place.
        tolerance: How near to everybody's score an order is cut off; by default the standard error
            of the score over evaluation samples.
        data: The data that were passed to the run, if any were.
        model: The network that was passed to the run, if any was.
        plugins: The plugins that the run was made with.
        tell: A function that is called with what it will cost.
        progress: A function that is called with what is done, the number done and of all.
        columns: How `data` are read, as `run` takes them.

    >>> value_clients("runs/first").sort_values("value")  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else Run.load(run)
    wanted = Wanted(leave_out, shapley, tuple(seeds), from_round, score, tolerance)
    scenario = load_scenario(run.path / SCENARIO, plugins=plugins or run.plugins)
    pass_again(scenario, data, model, **columns)
    with lock(run.path / CONTRIBUTIONS), pin_threads(scenario.threads):
        measuring = Measuring(run, scenario, wanted, progress)
        tell(describe_cost(*measuring.cost))
        measuring.measure()
    return Run.load(run.path).contributions


class Measuring:
    """What is measured of a run's clients."""

    def __init__(
        self, run: Run, scenario: Scenario, wanted: Wanted, progress: Progress = _ignore
    ) -> None:
        """Check what is wanted; raise SimsplitError for what cannot be measured."""
        self.run, self.wanted, self.progress = run, wanted, progress
        self.clients = range(scenario.clients.count)
        self.seeds = wanted.seeds or (scenario.seed,)
        self.column = choose_column(scenario, wanted.column)
        _refuse(run, scenario, wanted, self.seeds)
        data = scenario.prepare_data()
        self.coalitions = Coalitions(run, scenario, data, self.column, wanted.start)
        self.cost = self._estimate_cost()
        self._done = 0

    def measure(self) -> None:
        """Measure, and keep the tables in the run directory."""
        if self.wanted.leave_out:
            self._keep(LEAVE_OUT, leave_one_out(self._value, self.clients, self.seeds))
        orders, tolerance = self.wanted.orders, self.wanted.tolerance
        if orders > 0 and is_exact(len(self.clients), orders):
            self._keep(SHAPLEY, compute_shapley(self._value, self.clients, self.seeds))
        elif orders > 0:
            if tolerance is None:
                tolerance = measure_noise(self._value(frozenset(self.clients), self.seeds[0]))
            sampled = sample_shapley(self._value, self.clients, self.seeds, orders, tolerance)
            self._keep(SHAPLEY, sampled)

    def _value(self, members: Members, seed: int) -> Scores:
        trains = not self.coalitions.is_known(members, seed)
        scores = self.coalitions.value(members, seed)
        if trains:
            self._done += 1
            self.progress("coalitions", self._done, self.cost[0])
        return scores

    def _keep(self, name: str, estimates: Sequence[ClientEffect]) -> None:
        """Write a table, and remove no other."""
        names = self.run.client_names
        rows = [
            {
                "client": each.client,
                **({"name": names.get(each.client)} if names else {}),
                "value": each.value,
                "low": each.low,
                "high": each.high,
                "standard_error": each.standard_error,
                "over": each.over,
                "score": self.column,
                "seeds": " ".join(map(str, self.seeds)),
                "from_round": self.wanted.start,
                "to_round": self.run.summary["rounds_done"],
                "orders": self.wanted.orders if name == SHAPLEY else None,
            }
            for each in estimates
        ]
        file = self.run.path / CONTRIBUTIONS / f"{name}.csv"
        with writing(file):
            make_folder(file.parent)
            replace(file, encode_csv(rows))

    def _estimate_cost(self) -> tuple[int, float]:
        """Estimate how many coalitions train, and their seconds at the pace of the run."""
        everybody, wanted, timing = frozenset(self.clients), self.wanted, self.run.timing
        asked = [(everybody, seed) for seed in self.seeds]
        if wanted.leave_out:
            asked += [(everybody - {c}, seed) for c in self.clients for seed in self.seeds]
        if wanted.orders:
            asked += list_coalitions(self.clients, self.seeds, wanted.orders)
        sizes = [len(m) for m, seed in set(asked) if not self.coalitions.is_known(m, seed)]
        after = timing[timing["round"] > wanted.start]
        last = float(timing["evaluate_s"].iloc[-1]) if len(timing) else 0.0
        whole = float(after["train_s"].sum()) + last
        return len(sizes), sum(size / len(everybody) * whole for size in sizes)


def describe_cost(runs: int, seconds: float) -> str:
    """Return what measuring costs at most, in words."""
    if not runs:
        return "every coalition is known; nothing trains"
    minutes = seconds / 60
    time = f"{seconds:.0f} s" if minutes < 1.5 else f"{minutes:.0f} min"
    time = time if minutes < 90 else f"{minutes / 60:.1f} h"
    coalitions = "1 coalition trains" if runs == 1 else f"{runs:,} coalitions train"
    return f"{coalitions} at most, about {time} in all at the pace of the run"


def choose_column(scenario: Scenario, wanted: str | None) -> str:
    """Return the column that is the score; raise SimsplitError if the run has no such column."""
    figures = scenario.figures
    if wanted is not None:
        if wanted not in figures:
            hint = suggest(wanted, figures) or ","
            raise SimsplitError(f"score '{wanted}'{hint} allowed: {', '.join(figures)}")
        return wanted
    return find_headline(figures) or find_headline(figures, "validation") or figures[0]


def _refuse(run: Run, scenario: Scenario, wanted: Wanted, seeds: Sequence[int]) -> None:
    """Raise SimsplitError for what cannot be measured."""
    if not wanted.leave_out and wanted.orders < 1:
        raise SimsplitError("nothing to measure: leave clients out, or name a number of orders")
    if (status := run.summary["status"]) != "finished":
        raise RunError(f"{run.path} is {status}; clients are valued in a run that has finished")
    if scenario.clients.count < 2:
        raise RunError(f"{run.path} has one client; without it nobody trains")
    if "deployed" in run.summary:
        raise RunError(f"{run.path} was deployed: its clients' data are theirs alone")
    if wanted.start and [*seeds] != [scenario.seed]:
        raise SimsplitError(
            f"from round {wanted.start} the run's own seed goes on ({scenario.seed}), got seeds "
            f"{format_list(seeds)}; leave out one of both"
        )
    rounds = run.summary["rounds_done"]
    if not 0 <= wanted.start < max(rounds, 1):
        raise SimsplitError(f"from round: must be 0 to {rounds - 1}, got {wanted.start}")
