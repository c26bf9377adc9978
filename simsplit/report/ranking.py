"""A search ends in an answer: its settings ranked, and those that are as good as the best.

Settings are ranked by validation data where there are any, since the best of many on the test data
is flattered by the choice. Each is compared with the best seed by seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import RunError, suggest
from simsplit.metrics import (
    Better,
    find_better,
    find_decimals,
    find_headline,
    format_column,
    strip_split,
)
from simsplit.metrics.intervals import compute_deviation, compute_half_width
from simsplit.report.grouping import (
    Loaded,
    Row,
    list_differing,
    load_search,
    refuse_unfinished,
    write_label,
)
from simsplit.report.numbers import label_groups, measure
from simsplit.report.tables import Table, choose_form, format_change, format_mean, write_mean
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ranked:
    """A setting in the ranking."""

    label: Mapping[str, str]
    row: Row
    by_seed: Mapping[int, float]
    """The figure that ranks, by seed."""
    tested: Sequence[float]
    """The task's main figure on the test data, run by run."""
    way: Better = "more"
    """The figure's better way."""
    changes: Sequence[float] = ()
    """The differences from the best setting, seed by seed; empty for the best itself."""

    @property
    def rounds(self) -> int:
        """The rounds that all of its runs have trained."""
        return min(int(entry.run.summary["rounds_done"]) for entry in self.row.entries)

    @property
    def is_pruned(self) -> bool:
        """Whether the search gave up one of its runs."""
        return any(entry.run.summary["status"] == "pruned" for entry in self.row.entries)

    @property
    def mean(self) -> float:
        """The mean of the figure that ranks."""
        return statistics.fmean(self.by_seed.values())

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference from the best; None for one seed, and the best."""
        half = compute_half_width(self.changes) if self.changes else None
        if half is None:
            return None
        mean = statistics.fmean(self.changes)
        return mean - half, mean + half

    @property
    def is_resolved(self) -> bool:
        """Whether the setting is worse than the best by more than the seeds' spread explains.

        One that is better on the seeds that both have, since others of its seeds failed, is not.
        """
        if self.interval is None:
            return False
        low, high = self.interval
        return high < 0 if self.way == "more" else low > 0


@dataclass(frozen=True)
class Ranking:
    """Settings in order, the best first."""

    by: str
    """The figure that ranks."""
    test: str | None
    """The task's main figure on the test data, which is shown beside it, if it is another."""
    places: Sequence[Ranked]
    left_out: Sequence[str] = ()
    """A line with the reason for each cell that is not ranked."""
    pruned: Sequence[Ranked] = ()
    """Settings that the search gave up, with what they had reached; they have no place."""

    @property
    def best(self) -> Ranked:
        """The setting with the best mean."""
        return self.places[0]

    @property
    def ties(self) -> int:
        """How many settings are not resolved from the best."""
        return sum(1 for place in self.places[1:] if not place.is_resolved)


def rank(*runs: str | Path | Run, by: str | None = None) -> "pd.DataFrame":
    """Rank the settings of sweeps: a row per setting, the best first.

    `place` counts from 1; `tied` says whether a setting is not resolved from the best; `change` is
    its mean difference from the best, seed by seed, with a 95 % interval from two seeds on. In a
    search with a pruner, `pruned` settings come last without a place, and `round` is their last.

    Args:
        runs: Sweep and run directories.
        by: The figure that ranks; by default the task's main figure on the validation data.

    >>> rank("runs/search")[["place", "tied", "lr", "change"]]  # doctest: +SKIP
    """
    import pandas as pd

    paths = [run.path if isinstance(run, Run) else run for run in runs]
    ranking = rank_loaded(load_search(paths), by=by)
    rows: list[dict[str, object]] = []
    for number, place in enumerate(ranking.places, 1):
        low, high = place.interval or (None, None)
        values = list(place.by_seed.values())
        rows.append(
            {
                "place": number,
                "tied": number > 1 and not place.is_resolved,
                **place.label,
                "seeds": len(values),
                f"{ranking.by}_mean": place.mean,
                f"{ranking.by}_std": compute_deviation(values) if len(values) > 1 else None,
                "change": statistics.fmean(place.changes) if place.changes else 0.0,
                "change_low": low,
                "change_high": high,
            }
        )
        if ranking.test is not None and place.tested:
            rows[-1][f"{ranking.test}_mean"] = statistics.fmean(place.tested)
    if not ranking.pruned:
        return pd.DataFrame(rows)
    for row, place in zip(rows, ranking.places, strict=True):
        row.update(pruned=False, round=place.rounds)
    for place in ranking.pruned:
        reached = {f"{ranking.by}_mean": place.mean, "seeds": len(place.by_seed)}
        rows.append({**place.label, **reached, "pruned": True, "round": place.rounds})
    return pd.DataFrame(rows)


def rank_loaded(loaded: Loaded, by: str | None = None) -> Ranking:
    """Rank loaded runs; raise RunError if the figure is unknown or neither way is better."""
    refuse_unfinished(loaded.entries)
    groups = label_groups([*loaded.entries, *loaded.pruned])
    differ = list_differing([label for label, _ in groups])
    settings = [({name: each.get(name, "") for name in differ}, row) for each, row in groups]
    quoted = "best_on_validation"
    figures = [[measure([entry.run], quoted) for entry in row.entries] for _, row in settings]
    known = list(dict.fromkeys(name for row in figures for run in row for name in run))
    test = find_headline(known)
    by, way = _choose_figure(by, known)
    ranked, lacking = [], list(loaded.left_out)
    for (label, row), runs in zip(settings, figures, strict=True):
        seeds = [entry.scenario["seed"] for entry in row.entries]
        by_seed = {seed: run[by][0] for seed, run in zip(seeds, runs, strict=True) if by in run}
        if not by_seed:
            lacking.append(f"not ranked, since it has no {by}: {write_label(label)}")
            continue
        if math.isnan(statistics.fmean(by_seed.values())):
            lacking.append(f"not ranked, since its {by} is not a number: {write_label(label)}")
            continue
        tested = [run[test][0] for run in runs if test is not None and test in run]
        ranked.append(Ranked(label, row, by_seed, tested, way))
    if not ranked:
        raise RunError(f"no setting can be ranked: {'; '.join(lacking)}")
    ranked.sort(key=lambda place: place.mean, reverse=way == "more")
    places = [place for place in ranked if not place.is_pruned]
    if not places:
        raise RunError("no setting was trained to its end with all of its seeds")
    pruned = [place for place in ranked if place.is_pruned]
    beside = test if test != by else None
    return Ranking(by, beside, _compare_with_best(places), lacking, pruned)


def _choose_figure(by: str | None, known: Sequence[str]) -> tuple[str, Better]:
    """Return the figure that ranks, and its better way; raise RunError if there is none."""
    by = by or find_headline(known, "validation") or find_headline(known)
    if by is None:
        raise RunError(f"--by: give the figure that ranks; known: {', '.join(known)}")
    if by not in known:
        raise RunError(f"--by: unknown '{by}'{suggest(by, known) or ','} known: {', '.join(known)}")
    if (way := find_better(by)) is None:
        raise RunError(f"--by: of {by} neither more nor less is better")
    return by, way


def _compare_with_best(places: Sequence[Ranked]) -> list[Ranked]:
    """Give each setting its differences from the first, of the seeds that both have."""
    best, compared = places[0], [places[0]]
    for place in places[1:]:
        common = [seed for seed in place.by_seed if seed in best.by_seed]
        changes = [place.by_seed[seed] - best.by_seed[seed] for seed in common]
        compared.append(replace(place, changes=changes or [place.mean - best.mean]))
    return compared


def describe_best(ranking: Ranking) -> str:
    """Say in a sentence which setting is best, and how many are as good as far as seeds tell."""
    best, others = ranking.best, len(ranking.places) - 1
    name = write_label(best.label) or "the only setting"
    figures = [f"{format_column(ranking.by)} {_write(ranking.by, list(best.by_seed.values()))}"]
    if ranking.test is not None and best.tested:
        figures.append(f"{format_column(ranking.test)} {_write(ranking.test, best.tested)}")
    words = f"best: {name} ({', '.join(figures)})"
    if not others:
        return words
    if len(best.by_seed) < 2:
        return f"{words}; with one seed, no order of settings is settled"
    if not ranking.ties:
        return f"{words}; it is ahead of all others by more than the spread over seeds"
    if ranking.ties == others:
        return f"{words}; no other is behind it by more than the spread over seeds"
    return f"{words}; {ranking.ties} of {others} others may be as good, by the spread over seeds"


def tabulate_ranking(ranking: Ranking) -> Table:
    """Tabulate the ranking; `=` marks settings that are not resolved from the best."""
    names = list(ranking.best.label)
    beside = [ranking.test] if ranking.test else []
    figures = [format_column(figure) for figure in (ranking.by, *beside)]

    def make_row(first: str, place: Ranked, last: str) -> tuple[str, ...]:
        values = list(place.by_seed.values())
        tested = [_write(figure, place.tested) for figure in beside]
        shown = [str(len(values)), _write(ranking.by, values), *tested]
        return (first, *(place.label[name] for name in names), *shown, last)

    rows = []
    for number, place in enumerate(ranking.places, 1):
        tied = number > 1 and not place.is_resolved
        rows.append(make_row(f"{number}{' =' * tied}", place, _write_change(ranking.by, place)))
    rows += [make_row("pruned", each, f"after round {each.rounds}") for each in ranking.pruned]
    ranked = f"ranked by {format_column(ranking.by)}"
    title = f"{ranked}; = may be as good as the best, by 95 % intervals over seeds"
    columns = ("place", *names, "seeds", *figures, "behind the best")
    return Table(title, columns, rows, "r" + "l" * len(names) + "r" * (2 + len(figures)))


def warn_of_test_data(ranking: Ranking) -> str | None:
    """Return a warning if the settings were chosen by the test data."""
    if not ranking.by.startswith("test_"):
        return None
    return (
        "chosen by the test data, whose figure of the best is therefore too good; hold data out "
        "for the choice with data.validation"
    )


def _write(figure: str, values: Sequence[float]) -> str:
    """Write a figure's mean and deviation: a share of the task in per cent, others as they are."""
    if strip_split(figure) != figure:
        unit = " %" if find_decimals(strip_split(figure)) is None else ""
        return write_mean(strip_split(figure), values) + unit
    return format_mean(values, _choose_digits(values))


def _choose_digits(values: Sequence[float]) -> int:
    """Return the decimals of a figure that is none of the task's: four digits of the mean."""
    size = abs(statistics.fmean(values))
    return min(4, max(0, 3 - math.floor(math.log10(size)))) if size else 0


def _write_change(figure: str, place: Ranked) -> str:
    """Write how far a setting is behind the best, with its interval."""
    if not place.changes:
        return ""
    if strip_split(figure) != figure:
        scale, digits = choose_form(strip_split(figure))
    else:
        scale, digits = 1, _choose_digits(list(place.by_seed.values()))
    interval = place.interval and (scale * place.interval[0], scale * place.interval[1])
    return format_change(scale * statistics.fmean(place.changes), interval, digits)
