"""An overview of runs on all kinds of data needs the worst leak of inputs on one scale.

The scale goes from the best guess without an attack (0 %) to the original (100 %), by the mean
squared error of images and rows, and by ROUGE-L of texts.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simsplit.metrics import METRICS
from simsplit.report.tables import write_mean
from simsplit.results import Run
from simsplit.results.leak_table import FLOOR, has_role, take_last_judged

if TYPE_CHECKING:
    import pandas as pd

_PERFECT = {"rouge_l": 1.0, "mse": 0.0}
"""Figures of a leak, with the original's value; a run is measured by the first that it has."""


class Leak(NamedTuple):
    """The worst attack's recoveries, over runs that differ only in their seed."""

    attack: str
    shares: list[float]
    """Each run's share: 0 is the best guess without an attack, 1 the original."""
    figure: str
    reached: float
    floor: float

    @property
    def cells(self) -> dict[str, str]:
        """The cells of a row, by column."""
        against = (
            f"{write_mean(self.figure, [self.reached])} / {write_mean(self.figure, [self.floor])}"
        )
        share = f"{100 * statistics.fmean(self.shares):.0f} %"
        if len(self.shares) > 1:
            share = f"{share[:-2]} ± {100 * statistics.stdev(self.shares):.0f} %"
        worst = f"{self.attack}: {METRICS[self.figure].words} {against}"
        return {"leak": share, "worst attack: its figure / the guess's": worst}


def make_leak_cells(runs: Sequence[Run]) -> Mapping[str, str]:
    """Make the cells of a row in the overview; return none if no attack recovered inputs."""
    leak = find_worst_leak([run for run in runs if len(run.recovered)])
    return leak.cells if leak else {}


def find_worst_leak(runs: Sequence[Run]) -> Leak | None:
    """Find the attack that recovers most on average over runs; return None without attacks."""
    lasts = [take_last_judged(run.recovered) for run in runs]
    known = [name for name in _PERFECT if lasts and all(name in last for last in lasts)]
    if not known:
        return None
    figure = known[0]
    means = [last.groupby("attack")[figure].mean() for last in lasts]
    guesses = {str(name) for last in lasts for name in has_role(last, FLOOR)["attack"]}
    names = dict.fromkeys(str(name) for mean in means for name in mean.index)
    leaks = [
        leak
        for name in names
        if name not in guesses and all(name in mean.index for mean in means)
        if (leak := _measure_leak(name, figure, means, guesses)) is not None
    ]
    return max(leaks, key=lambda leak: statistics.fmean(leak.shares), default=None)


def _measure_leak(
    attack: str, figure: str, means: Sequence["pd.Series[Any]"], blind: Collection[str]
) -> Leak | None:
    best = min if _PERFECT[figure] == 0 else max
    guesses = [[float(mean[name]) for name in blind if name in mean.index] for mean in means]
    reached = [float(mean[attack]) for mean in means]
    if not all(guesses) or any(map(math.isnan, reached)):
        return None
    floors = [best(guess) for guess in guesses]
    perfect = _PERFECT[figure]
    shares = [
        (floor - got) / (floor - perfect) if floor != perfect else 0.0
        for floor, got in zip(floors, reached, strict=True)
    ]
    return Leak(attack, shares, figure, statistics.fmean(reached), statistics.fmean(floors))
