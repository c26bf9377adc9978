"""A search gives bad settings up before their last round; Optuna's pruners judge them.

A setting is judged by its figure on validation data alone, after each evaluation, against the
settings of earlier batches with the same seed. Those of its own batch do not count: which of them
is ahead depends on the machine. So a search that is resumed gives up what an uninterrupted one
does. Everything here is plain values, since cells may be trained in other processes.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import RunPrunedError
from simsplit.metrics import find_better, find_headline, format_column
from simsplit.progress import Observer, RoundEnded, RunPlan
from simsplit.results import Run, SweepDirectory
from simsplit.scenario import Cell, Scenario, Sweep
from simsplit.scenario.search_config import Pruner, Search
from simsplit.scenario.sweep_files import count_evaluations

STUDY = "search"
"""A fixed name, since Hyperband draws a trial's bracket by it and by the trial's number."""


@dataclass(frozen=True)
class Curve:
    """A setting's values after each evaluation, for one seed."""

    number: int
    """The setting's place in the search."""
    values: Sequence[float]
    """More is better."""
    rungs: Mapping[str, float] = field(default_factory=dict)
    """What a pruner of successive halving noted of the setting."""
    finished: bool = True
    """Whether it was trained to its last round."""


@dataclass(frozen=True)
class Judge:
    """What a cell is judged by while it trains."""

    pruner: Pruner
    grace: int
    evaluations: int
    """Evaluations of a setting that is not given up."""
    figure: str | None
    """The figure on validation data; None for the task's main one."""
    number: int
    """The setting's place in the search."""
    earlier: Sequence[Curve] = ()


class Trial:
    """A cell's values so far, as a trial among the earlier ones in a study of Optuna's."""

    def __init__(self, judge: Judge) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.judge = judge
        self.study = optuna.create_study(
            study_name=STUDY, direction="maximize", pruner=_make_pruner(judge)
        )
        earlier = {curve.number: curve for curve in judge.earlier}
        for number in range(judge.number):
            self.study.add_trial(_make_trial(earlier.get(number)))
        self.trial = self.study.ask()
        self.values: list[float] = []

    def report(self, value: float) -> bool:
        """Take the value of the next evaluation; return whether the setting should be given up."""
        self.values.append(value)
        self.trial.report(value, len(self.values))
        return self.trial.should_prune()

    @property
    def rungs(self) -> dict[str, float]:
        """Return what a pruner of successive halving noted of this setting."""
        noted = self.study.get_trials(deepcopy=False)[self.trial.number].system_attrs
        return {str(name): float(value) for name, value in noted.items()}


def _make_pruner(judge: Judge) -> Any:  # noqa: ANN401 - Optuna's
    from optuna import pruners

    if judge.pruner == "median":
        # A trial may be pruned from the step after its warm-up on, and steps count from 1.
        return pruners.MedianPruner(n_warmup_steps=judge.grace)
    if judge.pruner == "successive_halving":
        return pruners.SuccessiveHalvingPruner(min_resource=judge.grace)
    return pruners.HyperbandPruner(min_resource=judge.grace, max_resource=judge.evaluations)


def _make_trial(curve: Curve | None) -> Any:  # noqa: ANN401 - Optuna's
    """Return an earlier setting as a trial; one without values, as of this batch, has failed."""
    from optuna.trial import TrialState, create_trial

    if curve is None or not curve.values:
        return create_trial(state=TrialState.FAIL)
    return create_trial(
        state=TrialState.COMPLETE if curve.finished else TrialState.PRUNED,
        value=curve.values[-1],
        intermediate_values=dict(enumerate(curve.values, 1)),
        system_attrs=dict(curve.rungs),
    )


class GiveUp(Observer):
    """The observer that ends a cell's run once its judge gives the setting up."""

    def __init__(self, judge: Judge, path: Path) -> None:
        self.judge, self.path = judge, path
        self.judged: Trial | None = None
        self.rounds = 0

    def begin(self, plan: RunPlan) -> None:
        """Note how long the run is."""
        self.rounds = plan.rounds

    def round(self, ended: RoundEnded) -> None:
        """Raise RunPrunedError if the round's figure is too far behind, before the last round."""
        figure = self.judge.figure or find_headline(ended.figures, "validation")
        if not ended.main or figure is None or figure not in ended.figures:
            return
        if self.judged is None:  # a resumed run has rounds that were judged before
            self.judged = Trial(self.judge)
            for value in read_values(Run.load(self.path), figure, before=ended.number):
                self.judged.report(value)
        behind = self.judged.report(_orient(figure, ended.figures[figure]))
        if behind and ended.number < self.rounds:
            shown = f"{format_column(figure)} {ended.figures[figure]:.4g}"
            raise RunPrunedError(
                f"given up after round {ended.number} of {self.rounds} ({self.judge.pruner}): "
                f"{shown} is behind that of earlier settings"
            )


def read_values(run: Run, figure: str | None, before: int | None = None) -> list[float]:
    """Return a run's values after each evaluation of its last phase; more is better."""
    rounds = run.rounds
    name = figure or find_headline(list(rounds.columns), "validation")
    if name is None or name not in rounds or not len(rounds):
        return []
    rows = rounds[rounds["phase"] == rounds["phase"].iloc[-1]]
    if before is not None:
        rows = rows[rows["round"] < before]
    return [_orient(name, float(value)) for value in rows[name].dropna()]


def _orient(figure: str, value: float) -> float:
    return value if find_better(figure) == "more" else -value


class History:
    """The curves of all settings of a search so far, by seed."""

    def __init__(self, search: Search, scenario: Scenario) -> None:
        self.search, self.evaluations = search, count_evaluations(scenario)
        self.curves: dict[int, list[Curve]] = {}
        self.judges: dict[str, Judge] = {}

    def make_judges(self, sweep: Sweep, first: int) -> dict[str, Judge]:
        """Return what judges the cells of the newest batch, whose settings begin at `first`."""
        self.judges = {}
        if self.search.pruner is None:
            return self.judges
        for number, cell in _number_cells(sweep, self.search):
            if number >= first:
                self.judges[cell.name] = Judge(
                    pruner=self.search.pruner,
                    grace=self.search.grace,
                    evaluations=self.evaluations,
                    figure=self.search.figure,
                    number=number,
                    earlier=tuple(self.curves.get(cell.scenario.seed, ())),
                )
        return self.judges

    def extend(self, sweep: Sweep, directory: SweepDirectory, first: int) -> None:
        """Add the curves of a batch that has been trained."""
        if self.search.pruner is None:
            return
        for number, cell in _number_cells(sweep, self.search):
            if number < first:
                continue
            finished = directory.is_finished(cell.name)
            values: list[float] = []
            if finished or directory.is_pruned(cell.name):
                run = Run.load(directory.run_path(cell.name))
                values = read_values(run, self.search.figure)
            judged = Trial(self.judges[cell.name])
            for value in values:
                judged.report(value)
            curve = Curve(number, values, judged.rungs, finished)
            self.curves.setdefault(cell.scenario.seed, []).append(curve)

    def read_steps(self, number: int) -> dict[int, float] | None:
        """Return the values of a setting that was given up, as means over seeds; None otherwise."""
        curves = [curve for of_seed in self.curves.values() for curve in of_seed]
        mine = [curve for curve in curves if curve.number == number and curve.values]
        if all(curve.finished for curve in mine):
            return None
        shared = min(len(curve.values) for curve in mine)
        return {
            step + 1: statistics.fmean(curve.values[step] for curve in mine)
            for step in range(shared)
        }


def _number_cells(sweep: Sweep, search: Search) -> Iterator[tuple[int, Cell]]:
    """Yield each cell with the place of its setting in the search."""
    seen: list[dict[str, Any]] = []
    for cell in sweep.cells:
        settings = {name: cell.settings[name] for name in search.fields}
        if settings not in seen:
            seen.append(settings)
        yield seen.index(settings), cell
