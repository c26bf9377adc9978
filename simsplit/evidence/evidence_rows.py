"""A printed row beside what was measured of it: over seeds, and against other rows."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simsplit.evidence.claims import Axes, Claim, Figure
from simsplit.evidence.measurements import write_setting
from simsplit.evidence.verdicts import BySeed
from simsplit.metrics.intervals import compute_half_width
from simsplit.results.recovered_kinds import SILENT


@dataclass(frozen=True)
class Known:
    """A figure of one row over its seeds."""

    by_seed: BySeed

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def half(self) -> float | None:
        """Half the width of its 95 % interval; None with fewer than two seeds."""
        return compute_half_width([*self.by_seed.values()])

    @property
    def half_of_one_more(self) -> float | None:
        """Half the width of the interval in which one more seed lies with 95 %.

        It is that of a seed on another processor, too, whose rounding training carries on.
        """
        half = self.half
        return None if half is None else half * math.sqrt(len(self.by_seed) + 1)


@dataclass(frozen=True)
class EvidenceRow:
    """A printed row beside what was measured of it."""

    axes: Axes
    printed: Mapping[str, float]
    known: Mapping[str, Known]
    """Figure -> ours, where it is measured and not stale."""
    stale: int = 0
    """Measurements of it that were made with another scenario than the one that ships."""
    reached: frozenset[str] = frozenset()
    """The figures that cells of the tier measure of it."""

    @property
    def reachable(self) -> bool:
        """Whether a cell of the tier measures it."""
        return bool(self.reached)

    @property
    def seeds(self) -> int:
        """The fewest seeds of its measured figures; 0 where none is."""
        return min((len(known.by_seed) for known in self.known.values()), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `--json` prints them."""
        return {
            **self.axes,
            "printed": dict(self.printed),
            "measured": {
                name: {"mean": known.mean, "half_width": known.half, "by_seed": dict(known.by_seed)}
                for name, known in self.known.items()
            },
            "stale": self.stale,
        }


def put_against_others(row: EvidenceRow, rows: Sequence[EvidenceRow], claim: Claim) -> EvidenceRow:
    """Add a row's figures against other rows, seed by seed."""
    against = {name: figure for name, figure in claim.figures.items() if figure.of in row.known}
    added: dict[str, Known] = {}
    for name, figure in against.items():
        if figure.as_ == "variation":
            spread = _find_variation(row.known[figure.of])
            added |= {name: spread} if spread else {}
            continue
        axes = {**row.axes, **figure.against}
        other = next((each for each in rows if each.axes == axes), None)
        if other is None or figure.of not in other.known:
            continue
        values = _compare_by_seed(figure, row, other)
        if known := {seed: value for seed, value in values.items() if math.isfinite(value)}:
            added[name] = Known(known)
    return replace(row, known={**row.known, **added})


def add_silent(rows: Sequence[EvidenceRow], claim: Claim) -> list[EvidenceRow]:
    """Make a row of a silent model beside each undefended one, in tables that score defences.

    It is a control: nothing is read of it, and nothing that it says is of use.
    """
    scores = [figure for figure in claim.figures.values() if figure.as_ == "dcs"]
    made: dict[str, EvidenceRow] = {}
    for figure, row in itertools.product(scores, rows):
        undefended = row.known.get(figure.of)
        if undefended is None or row.axes != {**row.axes, **figure.against}:
            continue
        nothing = Known(dict.fromkeys(undefended.by_seed, 0.0))
        axes = {**row.axes, **dict.fromkeys(figure.against, SILENT)}
        known = dict.fromkeys((figure.of, *figure.leaked), nothing)
        before = made.get(write_setting(axes))
        made[write_setting(axes)] = EvidenceRow(
            axes, {}, {**(before.known if before else {}), **known}, reached=frozenset(known)
        )
    return [*made.values()]


def _compare_by_seed(figure: Figure, row: EvidenceRow, other: EvidenceRow) -> dict[int, float]:
    """Put a figure of a row against the other row's, on each seed that has all it takes."""
    mine, theirs = row.known[figure.of].by_seed, other.known[figure.of].by_seed
    leaks = {name: row.known[name].by_seed for name in figure.leaked if name in row.known}
    if len(leaks) < len(figure.leaked):
        return {}
    made = {}
    for seed in set(mine).intersection(theirs, *leaks.values()):
        leak = sum(weight * leaks[name][seed] for name, weight in figure.leaked.items())
        made[seed] = figure.compare(mine[seed], theirs[seed], leak)
    return dict(sorted(made.items()))


def _find_variation(known: Known) -> Known | None:
    """Compute the coefficient of variation over seeds, in per cent, by the jackknife.

    Each seed has its pseudo-value, so that their mean and interval are those of the coefficient.
    """
    values = known.by_seed
    if len(values) < 3:
        return None
    whole, count = _vary(values.values()), len(values)
    made = {
        seed: count * whole - (count - 1) * _vary(v for other, v in values.items() if other != seed)
        for seed in values
    }
    return Known(made) if all(map(math.isfinite, made.values())) else None


def _vary(values: Iterable[float]) -> float:
    every = list(values)
    mean = statistics.fmean(every)
    return 100 * statistics.stdev(every) / abs(mean) if mean else math.nan
