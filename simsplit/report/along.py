"""A plot's axis needs one figure of all settings, with its words, its unit and its better way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.metrics import METRICS, Better, find_better, find_metric

if TYPE_CHECKING:
    import pandas as pd

_LEAK, _CHANCE = "_leak", "_chance"
"""Ends of names: of a share that an attack tells, and of what chance tells."""
_ALIKE = 5
"""If chance differs by more points than this, the settings are of different tasks."""


@dataclass(frozen=True)
class Along:
    """A figure of each setting: its mean and deviation over seeds, in the axis' unit."""

    name: str
    means: Sequence[float]
    deviations: Sequence[float]
    chance: tuple[float, float] | None = None
    """A leak's least and greatest chance over settings, if these are close to each other."""
    called: str | None = None
    """The common part of the names of several figures on one axis."""
    unit: str = ""
    """The unit, written after the words."""

    @property
    def better(self) -> Better | None:
        """The better way, more or less, or None."""
        return find_better(self.name)

    @property
    def words(self) -> str:
        """The figure's name in words."""
        name = self.name if self.called is None else self.called
        for end, words in list_words_of_ends().items():
            if name.endswith(end):
                whose = name.removesuffix(end).strip("_").replace("_", " ")
                return f"{words} by {whose}" if whose else words
        return name.replace("_", " ")

    def label(self, toward: str = "→", away: str = "←") -> str:
        """Return the axis' label: the words, the unit, and an arrow towards better values."""
        unit = self.unit
        if self.better is None:
            return f"{self.words}{unit}"
        arrow = toward if self.better == "more" else away
        hint = f"better {arrow}" if self.better == "more" else f"{arrow} better"
        return f"{self.words}{unit}   ({hint})"


def read_along(table: "pd.DataFrame", name: str, beside: Sequence[str] = ()) -> Along:
    """Read a figure from the rows of `numbers.frame`; the figures in `beside` share its axis."""
    largest = max(float(table[f"{each}_mean"].max()) for each in (name, *beside))
    scale, unit = choose_unit(name, largest)
    means, deviations = (
        (table[f"{name}_{what}"].astype(float) * scale) for what in ("mean", "std")
    )
    between = None
    floor = f"{name.removesuffix(_LEAK)}{_CHANCE}_mean"
    if name.endswith(_LEAK) and floor in table:
        known = table[floor].dropna().astype(float) * scale
        if known.max() - known.min() <= _ALIKE:
            between = (float(known.min()), float(known.max()))
    return Along(name, means.tolist(), deviations.fillna(0).tolist(), between, unit=unit)


def join_figures(figures: Sequence[Along], called: str) -> Along:
    """Join several figures to one axis; `called` is the common part of their names."""
    if len(figures) == 1:
        return figures[0]
    if len({each.unit for each in figures}) > 1:
        raise RunError("--plot: these figures have no unit in common; draw them one by one")
    means, deviations = (
        [value for each in figures for value in getattr(each, what)]
        for what in ("means", "deviations")
    )
    return Along(figures[0].name, means, deviations, called=called, unit=figures[0].unit)


def list_words_of_ends() -> dict[str, str]:
    """Return the words for figures by the end of their names, which may follow an attack's name."""
    return {each.name: each.axis for each in METRICS.values() if each.axis}


_MANY_BYTES = 10 * 2**30
"""From this many bytes on, an axis in MiB would have too many digits."""


def choose_unit(name: str, largest: float) -> tuple[float, str]:
    """Return the factor that converts a figure to its axis' unit, and the unit's words."""
    if name.startswith("bytes") and name != "bytes_ratio":
        return (1 / 2**30, ", GiB") if largest >= _MANY_BYTES else (1 / 2**20, ", MiB")
    metric = find_metric(name)
    return (100, ", %") if metric is not None and metric.is_share else (1, "")
