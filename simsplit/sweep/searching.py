"""A search trains settings one batch after the other; Optuna chooses each by the earlier ones.

Each setting is an ordinary cell, or a cell for each seed. What was tried stands in the directory,
so that a search can be interrupted, resumed and made longer; nothing of Optuna's is stored.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, suggest
from simsplit.metrics import find_headline
from simsplit.report.numbers import find_better, measure
from simsplit.results import SWEEP, Run, SweepDirectory
from simsplit.scenario import Sweep
from simsplit.scenario.draws import round_value
from simsplit.scenario.searching import Search

Settings = dict[str, Any]
Train = Callable[[Sweep], SweepDirectory]
"""Trains the cells of a sweep that are not finished, and returns its directory."""
_REPEATS = 20
"""Choices that were tried already before a search is taken to have run out of new ones."""


def run_search(sweep: Sweep, path: Path, jobs: int, train: Train) -> Sweep:
    """Train settings until a search has tried as many as it should; return the sweep of them all.

    Args:
        sweep: A sweep with a search.
        path: Its directory, which may hold settings that were tried earlier.
        jobs: How many cells are trained at a time.
        train: What trains.
    """
    search = sweep.search
    assert search is not None, "asked of a sweep with a search"
    tried = _list_tried(path, search)
    each = len(sweep.try_settings([_choose_first(sweep, search)]).cells)
    study = _Study(search, seed=sweep.cells[0].scenario.seed)
    told = 0
    while True:
        if tried:
            now = sweep.try_settings(tried)
            directory = train(now)
            for settings in tried[told:]:
                study.tell(settings, _read_value(search, now, directory, settings))
            told = len(tried)
        if len(tried) >= search.count:
            return sweep.try_settings(tried)
        batch = min(max(1, jobs // each), search.count - len(tried))
        new = list(study.choose(batch, tried))
        if not new:
            return sweep.try_settings(tried)
        tried += new


def _choose_first(sweep: Sweep, search: Search) -> Settings:
    settings = sweep.cells[0].settings
    return {name: settings[name] for name in search.fields}


def _list_tried(path: Path, search: Search) -> list[Settings]:
    """List the settings of an earlier part of this search, in its order."""
    if not (path / SWEEP).exists():
        return []
    tried: list[Settings] = []
    for cell in SweepDirectory.load(path).cells:
        settings = {name: cell.settings.get(name) for name in search.fields}
        if settings not in tried:
            tried.append(settings)
    return tried


def _read_value(
    search: Search, sweep: Sweep, directory: SweepDirectory, settings: Mapping[str, Any]
) -> float | None:
    """Return what a setting reached, as a mean over its cells: more is better; None if one failed.

    A figure that is no number, as after a loss that diverged, is a failure too.
    """
    values = []
    for cell in sweep.cells:
        if any(cell.settings[name] != value for name, value in settings.items()):
            continue
        if not directory.is_finished(cell.name):
            return None
        figures = measure([Run.load(directory.run_path(cell.name))], "best_on_validation")
        figure = search.figure or find_headline(figures, "validation")
        if figure is None or figure not in figures:
            known = list(figures)
            hint = suggest(str(figure), known) or ";"
            raise RunError(f"sweep.optuna.figure: no '{figure}'{hint} known: {', '.join(known)}")
        if (way := find_better(figure)) is None:
            raise RunError(f"sweep.optuna.figure: of {figure} neither more nor less is better")
        values += [value if way == "more" else -value for value in figures[figure]]
    mean = statistics.fmean(values)
    return mean if math.isfinite(mean) else None


class _Study:
    """Optuna's study of a search."""

    def __init__(self, search: Search, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna: Any = optuna
        self.fields = search.fields
        self.ranges = {name: self._make_range(values) for name, values in search.fields.items()}
        samplers: dict[str, Callable[[], Any]] = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=search.start),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
            "qmc": lambda: optuna.samplers.QMCSampler(seed=seed),
            "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=search.start),
        }
        self.study = optuna.create_study(direction="maximize", sampler=samplers[search.sampler]())
        self.pending: list[tuple[Settings, Any]] = []

    def choose(self, count: int, tried: Sequence[Settings]) -> Iterator[Settings]:
        """Yield up to `count` settings that were not tried; fewer if the search finds no others."""
        seen = list(tried)
        for _ in range(count):
            for _ in range(_REPEATS):
                trial = self.study.ask(self.ranges)
                settings = {name: self._read_choice(name, trial) for name in self.fields}
                if settings not in seen:
                    break
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            else:
                return
            seen.append(settings)
            self.pending.append((settings, trial))
            yield settings

    def tell(self, settings: Settings, value: float | None) -> None:
        """Tell what a setting reached; None if it failed."""
        failed = self.optuna.trial.TrialState.FAIL
        for place, (chosen, trial) in enumerate(self.pending):
            if chosen == settings:
                del self.pending[place]
                state = failed if value is None else None
                self.study.tell(trial, value, state=state)
                return
        if value is not None:  # of an earlier part of this search
            params = {name: self._write_choice(name, held) for name, held in settings.items()}
            with_value = self.optuna.trial.create_trial(
                params=params, distributions=self.ranges, value=value
            )
            self.study.add_trial(with_value)

    def _make_range(self, values: Any) -> Any:  # noqa: ANN401 - Optuna's, and any YAML value
        kinds = self.optuna.distributions
        if isinstance(values, Mapping):
            ((kind, (low, high)),) = values.items()
            return kinds.FloatDistribution(low, high, log=kind == "log")
        # By place in the list, since Optuna takes neither lists nor mappings.
        return kinds.CategoricalDistribution(list(range(len(values))))

    def _read_choice(self, name: str, trial: Any) -> Any:  # noqa: ANN401
        values, chosen = self.fields[name], trial.params[name]
        return round_value(chosen) if isinstance(values, Mapping) else values[chosen]

    def _write_choice(self, name: str, held: Any) -> Any:  # noqa: ANN401
        values = self.fields[name]
        if not isinstance(values, Mapping):
            return values.index(held)
        ((_, (low, high)),) = values.items()
        return min(max(held, low), high)  # rounding may have left the range by a little
