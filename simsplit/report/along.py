"""One figure of settings along an axis: its words, its unit, and which way is better."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.report.numbers import better as better_way
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.tables import Better, decimals

if TYPE_CHECKING:
    import pandas as pd

_SPLITS = ("test_", "validation_")
_SHARES = ("_accuracy", "attack_success")
_NAMES = {"bytes_total": "bytes sent"}
_ALIKE = 5
"""Per cent: where chance differs more, the settings are of different tasks."""


@dataclass(frozen=True)
class Along:
    """A figure of each setting: mean and deviation over seeds, in the axis' unit."""

    name: str
    means: Sequence[float]
    deviations: Sequence[float]
    chance: tuple[float, float] | None = None
    """Of a leak: what chance comes to, least and most over settings, if it is alike for all."""
    called: str | None = None
    """What figures with one axis have in their names in common."""
    unit: str = ""
    """Behind the words."""

    @property
    def better(self) -> Better | None:
        """Which way is better."""
        return better_way(self.name)

    @property
    def words(self) -> str:
        """What it is called."""
        name = self.name if self.called is None else self.called
        for end, words in words_of_ends().items():
            if name.endswith(end):
                whose = name.removesuffix(end).strip("_").replace("_", " ")
                return f"{words} by {whose}" if whose else words
        known = _NAMES | _gathered(each.words for each in PRESENTATIONS.values())
        return known.get(name, name.replace("_", " "))

    def label(self, toward: str = "→", away: str = "←") -> str:
        """As an axis names it: with its unit, and an arrow to where it is better."""
        unit = self.unit
        if self.better is None:
            return f"{self.words}{unit}"
        arrow = toward if self.better == "more" else away
        told = f"better {arrow}" if self.better == "more" else f"{arrow} better"
        return f"{self.words}{unit}   ({told})"


def along(table: "pd.DataFrame", name: str, beside: Sequence[str] = ()) -> Along:
    """A figure of `numbers.frame`'s rows; `beside` are figures that share its axis."""
    largest = max(float(table[f"{each}_mean"].max()) for each in (name, *beside))
    scale, unit = _unit(name, largest)
    means, deviations = (
        (table[f"{name}_{what}"].astype(float) * scale) for what in ("mean", "std")
    )
    between = None
    for share, chance in _chances().items():
        floor = f"{name.removesuffix(share)}{chance}_mean"
        if name.endswith(f"_{share}") and floor in table:
            known = table[floor].dropna().astype(float) * scale
            if known.max() - known.min() <= _ALIKE:
                between = (float(known.min()), float(known.max()))
    return Along(name, means.tolist(), deviations.fillna(0).tolist(), between, unit=unit)


def joined(figures: Sequence[Along], called: str) -> Along:
    """Several figures on one axis, which is told what they have in common."""
    if len(figures) == 1:
        return figures[0]
    if len({each.unit for each in figures}) > 1:
        raise RunError("--plot: these figures have no unit in common; draw them one by one")
    means, deviations = (
        [value for each in figures for value in getattr(each, what)]
        for what in ("means", "deviations")
    )
    return Along(figures[0].name, means, deviations, called=called, unit=figures[0].unit)


def words_of_ends() -> dict[str, str]:
    """Return what figures are called by the end of their names, behind an attack's."""
    return _gathered(each.words_of_ends for each in PRESENTATIONS.values())


def _chances() -> dict[str, str]:
    return _gathered(each.chances for each in PRESENTATIONS.values())


def _gathered(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: words for each in maps for name, words in each.items()}


_MANY_BYTES = 10 * 2**30
"""From here on an axis of MiB has too many digits to read."""


def _unit(name: str, largest: float) -> tuple[float, str]:
    """What to multiply by, and the unit's words."""
    if name.startswith("bytes") and name != "bytes_ratio":
        return (1 / 2**30, ", GiB") if largest >= _MANY_BYTES else (1 / 2**20, ", MiB")
    figure = name
    for split in _SPLITS:
        figure = figure.removeprefix(split)
    of_task = figure != name and decimals(figure) is None
    chances = _chances()
    shares = (*_SHARES, *(f"_{end}" for end in (*chances, *chances.values())))
    return (100, ", %") if of_task or name.endswith(shares) else (1, "")
