"""A search trains settings one batch after the other; Optuna chooses each by the earlier ones.

Each setting is an ordinary cell, or a cell for each seed. What was tried stands in the directory,
so that a search can be interrupted, resumed and made longer; nothing of Optuna's is stored.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, suggest
from simsplit.metrics import find_better, find_headline
from simsplit.report.numbers import measure
from simsplit.results import SWEEP, Run, SweepDirectory
from simsplit.scenario import Sweep
from simsplit.scenario.draws import round_value
from simsplit.scenario.search_config import Search
from simsplit.sweep.pruning import History, Judge

Settings = dict[str, Any]
_REPEATS = 20
"""Choices that were tried already before a search is taken to have run out of new ones."""


Train = Callable[[Sweep, Sequence[int], Mapping[str, Judge]], SweepDirectory]
"""Trains the cells of a sweep that are not finished, and returns its directory. It is told how many
settings the search chose at a time, and what may give a cell up, by cell."""


def run_search(sweep: Sweep, path: Path, jobs: int, train: Train) -> Sweep:
    """Train settings until a search has tried as many as it should; return the sweep of them all.

    A resumed search chooses everything again from the beginning, and trains only what is not in
    the directory; so the sampler's state is that of an uninterrupted search. `path` is the
    directory, and `jobs` cells are trained at a time.
    """
    search = sweep.search
    assert search is not None, "asked of a sweep with a search"
    before = _read_batches(path, search)
    example = {name: sweep.cells[0].settings[name] for name in search.fields}
    each = len(sweep.try_settings([example]).cells)
    study = _Study(search, seed=sweep.cells[0].scenario.seed)
    history = History(search, sweep.cells[0].scenario)
    tried: list[Settings] = []
    batches: list[int] = []
    while before or len(tried) < search.count:
        if before:
            new = before.pop(0)
            study.choose_again(new, tried)
        else:
            new = list(study.choose(min(max(1, jobs // each), search.count - len(tried)), tried))
        if not new:
            break
        first, tried = len(tried), [*tried, *new]
        batches.append(len(new))
        now = sweep.try_settings(tried)
        directory = train(now, batches, history.make_judges(now, first))
        history.extend(now, directory, first)
        for number, settings in enumerate(new, first):
            value = _read_value(search, now, directory, settings)
            study.tell(settings, value, history.read_steps(number))
    return sweep.try_settings(tried)


def _read_batches(path: Path, search: Search) -> list[list[Settings]]:
    """Return the settings of an earlier part of a search, in its order and in its batches."""
    if not (path / SWEEP).exists():
        return []
    directory = SweepDirectory.load(path)
    settings: list[Settings] = []
    for cell in directory.cells:
        own = {name: cell.settings.get(name) for name in search.fields}
        _refuse_other_search(directory.path, search, cell.settings)
        if own not in settings:
            settings.append(own)
    batches, counts = [], iter(directory.batches)
    while settings:
        count = next(counts, 1)  # without a note of it, one
        batches.append(settings[:count])
        settings = settings[count:]
    return batches


def _refuse_other_search(path: Path, search: Search, tried: Mapping[str, Any]) -> None:
    """Raise RunError for a setting that this search could not have tried."""
    for name, values in search.fields.items():
        held, was = tried.get(name), f"has tried {tried.get(name)}"
        if name not in tried:
            fits, was = False, "has not had it"
        elif isinstance(values, Mapping):
            ((_, (low, high)),) = values.items()
            fits = isinstance(held, int | float) and round_value(low) <= held <= round_value(high)
        else:
            fits = held in values
        if not fits:
            raise RunError(
                f"{path} has a search with other fields or values: of {name} it {was}; resume it "
                "with those, or give another --out"
            )


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
        if not (directory.is_finished(cell.name) or directory.is_pruned(cell.name)):
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
        with warnings.catch_warnings():  # some samplers say that they are experimental
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = samplers[search.sampler]()
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
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

    def choose_again(self, settings: Sequence[Settings], tried: Sequence[Settings]) -> None:
        """Choose a batch of an earlier part of this search again, for the sampler's state.

        What comes otherwise, as with other options, is dropped; its settings are told as strangers.
        """
        if list(self.choose(len(settings), tried)) != list(settings):
            for _, trial in self.pending:
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            self.pending.clear()

    def tell(
        self, settings: Settings, value: float | None, steps: Mapping[int, float] | None
    ) -> None:
        """Tell what a setting reached, None if it failed; `steps` are of one that was given up."""
        states = self.optuna.trial.TrialState
        state = states.COMPLETE if steps is None else states.PRUNED
        state = states.FAIL if value is None else state
        for place, (chosen, trial) in enumerate(self.pending):
            if chosen == settings:
                del self.pending[place]
                for step, reached in (steps or {}).items():
                    trial.report(reached, step)
                # Optuna takes a pruned trial's value from its steps.
                known = value if state == states.COMPLETE else None
                self.study.tell(trial, known, state=state)
                return
        if value is not None:  # of an earlier part of this search
            params = {name: self._write_choice(name, held) for name, held in settings.items()}
            with_value = self.optuna.trial.create_trial(
                params=params,
                distributions=self.ranges,
                value=value,
                state=state,
                intermediate_values=dict(steps or {}),
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
