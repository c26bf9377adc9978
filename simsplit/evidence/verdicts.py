"""Verdicts on claims, computed from seeds and intervals and never from means alone.

A comparison is judged by the differences of its sides, seed by seed, and Student's 95 % interval of
their mean. It holds where the whole interval says so, fails where the whole interval denies it, and
is not settled in between, or with one seed. Sides that share no seed get Welch's interval.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from simsplit.evidence.statements import Comparison
from simsplit.metrics.intervals import CONFIDENCE, compute_half_width

BySeed = Mapping[int, float]
"""Seed -> a figure of a setting's run."""


class ClaimVerdict(StrEnum):
    """What measurements say of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_SETTLED = "not settled"
    NOT_MEASURED = "not measured"
    OUT_OF_REACH = "out of reach"
    NO_CLAIM = "no claim"

    @property
    def is_open(self) -> bool:
        """Whether more measurements could change it."""
        return self in (ClaimVerdict.NOT_SETTLED, ClaimVerdict.NOT_MEASURED)


@dataclass(frozen=True)
class Judged:
    """One comparison beside what was measured of it."""

    comparison: Comparison
    verdict: ClaimVerdict
    seeds: int = 0
    mean: float = math.nan
    """Of left minus right."""
    half: float | None = None
    """Half the width of its 95 % interval; None with fewer than two seeds."""
    missing: tuple[str, ...] = ()
    """Rows that have no measurement."""


def judge(comparison: Comparison, rows: Mapping[str, BySeed]) -> Judged:
    """Judge a comparison by what was measured of each row."""
    missing = tuple(row for row in comparison.rows if not rows.get(row))
    if missing:
        return Judged(comparison, ClaimVerdict.NOT_MEASURED, missing=missing)
    shared = sorted(set.intersection(*(set(rows[row]) for row in comparison.rows)))
    if shared:
        values = [comparison.difference({r: rows[r][s] for r in comparison.rows}) for s in shared]
        mean, seeds = statistics.fmean(values), len(values)
        half = compute_half_width(values) if math.isfinite(mean) else None
    else:
        mean, half, seeds = _judge_unpaired(comparison, rows)
    return Judged(comparison, _verdict(comparison, mean, half), seeds, mean, half)


def together(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """Sum up the verdicts of all that must hold; of nothing at all: not measured.

    What is out of reach counts only where nothing else does.
    """
    every = set(verdicts)
    for worst in (
        ClaimVerdict.FAILS,
        ClaimVerdict.NOT_MEASURED,
        ClaimVerdict.NOT_SETTLED,
        ClaimVerdict.HOLDS,
        ClaimVerdict.OUT_OF_REACH,
    ):
        if worst in every:
            return worst
    return ClaimVerdict.NOT_MEASURED


def _judge_unpaired(
    comparison: Comparison, rows: Mapping[str, BySeed]
) -> tuple[float, float | None, int]:
    """Judge sides that were measured on different seeds: Welch's interval of their difference."""
    left, right = (_of_side(comparison, rows, which) for which in ("left", "right"))
    mean = statistics.fmean(left) - statistics.fmean(right)
    seeds = min(len(left), len(right))
    if seeds < 2 or not math.isfinite(mean):
        return mean, None, seeds
    parts = [statistics.variance(side) / len(side) for side in (left, right)]
    error = sum(parts)
    if not error:
        return mean, 0.0, seeds
    freedom = error**2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (left, right), strict=True)
    )
    from scipy.stats import t

    return mean, float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(error), seeds


def _of_side(comparison: Comparison, rows: Mapping[str, BySeed], which: str) -> Sequence[float]:
    """Compute one side on each seed that all of its rows have."""
    side = comparison.left if which == "left" else comparison.right
    if not side.rows:
        return [side.value({})] * 2
    seeds = set.intersection(*(set(rows[row]) for row in side.rows))
    values = [side.value({row: rows[row][seed] for row in side.rows}) for seed in sorted(seeds)]
    return values or [math.nan]


def _verdict(comparison: Comparison, mean: float, half: float | None) -> ClaimVerdict:
    if half is None or not math.isfinite(mean):
        return ClaimVerdict.NOT_SETTLED  # one seed has no interval, and settles nothing
    low, high = mean - half, mean + half
    if comparison.sign == "~":
        if -comparison.within <= low and high <= comparison.within:
            return ClaimVerdict.HOLDS
        apart = low > comparison.within or high < -comparison.within
        return ClaimVerdict.FAILS if apart else ClaimVerdict.NOT_SETTLED
    if comparison.sign in ("<", "<="):
        low, high = -high, -low
    strict = comparison.sign in (">", "<")
    if low > 0 or (low == 0 and not strict):
        return ClaimVerdict.HOLDS
    denied = high < 0 or (high == 0 and strict)
    return ClaimVerdict.FAILS if denied else ClaimVerdict.NOT_SETTLED
