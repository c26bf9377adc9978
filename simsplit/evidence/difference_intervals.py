"""The interval of a comparison's left side minus its right one, over seeds.

It is as sure as its number of seeds demands (`simsplit.evidence.looks`): 95 % at first. It is
Student's, of the differences seed by seed; Welch's where the sides share no seed. It is never
narrower than what one step of the measure would move, and where the sides are shares of counted
trials, never narrower than those of Clopper and Pearson leave (of a difference of two: by
Newcombe's method). So equal values on all seeds settle only what their number of trials can.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.evidence.looks import LOOKS, find_confidence
from simsplit.evidence.measures import Measure
from simsplit.evidence.statements import Comparison, Side
from simsplit.metrics.intervals import clopper_pearson, compute_half_width

BySeed = Mapping[int, float]
"""Seed -> a figure of a setting's run."""
_NO_SPREAD = 1e-9


@dataclass(frozen=True)
class SeedDifference:
    """Left minus right over seeds."""

    mean: float
    seeds: int
    interval: tuple[float, float] | None = None
    """Its interval; None with fewer than two seeds, or for values that are not finite."""
    has_no_spread: bool = False
    """Whether all seeds give one value of a measure whose step is not known."""
    spread: float = math.nan
    """The standard deviation of the differences seed by seed; nan where no seed is shared."""


def find_difference(
    comparison: Comparison,
    rows: Mapping[str, BySeed],
    measures: Mapping[str, Measure],
    planned: int = LOOKS[0],
) -> SeedDifference:
    """Find the interval of a comparison whose rows all have values.

    `planned` is the number of seeds that the table plans.
    """
    spread = math.nan
    shared = sorted(set.intersection(*(set(rows[row]) for row in comparison.rows)))
    if shared:
        values = [comparison.difference({r: rows[r][s] for r in comparison.rows}) for s in shared]
        mean, seeds = statistics.fmean(values), len(values)
        sure = find_confidence(seeds, planned)
        half = compute_half_width(values, sure) if math.isfinite(mean) else None
        spread = statistics.stdev(values) if half is not None else math.nan
    else:
        mean, half, seeds = _find_unpaired(comparison, rows, planned)
        sure = find_confidence(seeds, planned)
    if half is None or not math.isfinite(mean):
        return SeedDifference(mean, seeds)
    ranges = [(mean - half, mean + half)]
    if counted := _find_counted(comparison, rows, measures, sure):
        ranges.append(counted)
    else:
        step = _find_step(comparison, rows, measures)
        if half <= _NO_SPREAD * max(1.0, abs(mean)) and not step:
            return SeedDifference(mean, seeds, (mean, mean), has_no_spread=True)
        ranges.append((mean - step, mean + step))
    interval = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return SeedDifference(mean, seeds, interval, spread=spread)


def _find_step(
    comparison: Comparison, rows: Mapping[str, BySeed], measures: Mapping[str, Measure]
) -> float:
    """Find how far the difference moves at most if each row moves by a step of its measure."""
    means = {row: statistics.fmean(rows[row].values()) for row in comparison.rows}
    here = comparison.difference(means)
    moved = 0.0
    for row in comparison.rows:
        step = measures.get(row, Measure()).step
        moves = [comparison.difference({**means, row: means[row] + s}) for s in (step, -step)]
        moved += max((abs(move - here) for move in moves if math.isfinite(move)), default=0.0)
    return moved


def _find_counted(
    comparison: Comparison, rows: Mapping[str, BySeed], measures: Mapping[str, Measure], sure: float
) -> tuple[float, float] | None:
    """Find the interval of a difference of shares that are counted; None for anything else."""
    both = (comparison.left, comparison.right)
    sides = [_read_share(side, rows, measures, sure) for side in both]
    if sides[0] is None or sides[1] is None:
        return None
    (left, left_low, left_high), (right, right_low, right_high) = sides[0], sides[1]
    mean = left - right
    below = math.hypot(left - left_low, right_high - right)
    above = math.hypot(left_high - left, right - right_low)
    return mean - below, mean + above


def _read_share(
    side: Side, rows: Mapping[str, BySeed], measures: Mapping[str, Measure], sure: float
) -> tuple[float, float, float] | None:
    """Return a number, or a counted share with its exact interval; None for any other side."""
    (term, *more) = side.terms
    if more:
        return None
    if not isinstance(term, str):
        return term, term, term
    measure = measures.get(term, Measure())
    if not measure.trials:
        return None
    mean, trials = statistics.fmean(rows[term].values()), measure.trials * len(rows[term])
    low, high = clopper_pearson(round(mean / measure.whole * trials), trials, sure)
    return mean, low * measure.whole, high * measure.whole


def _find_unpaired(
    comparison: Comparison, rows: Mapping[str, BySeed], planned: int
) -> tuple[float, float | None, int]:
    """Compare sides that were measured on different seeds: Welch's interval of their difference."""
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
    from scipy.special import stdtrit

    sure = find_confidence(seeds, planned)
    return mean, float(stdtrit(freedom, (1 + sure) / 2)) * math.sqrt(error), seeds


def _of_side(comparison: Comparison, rows: Mapping[str, BySeed], which: str) -> Sequence[float]:
    """Compute one side on each seed that all of its rows have."""
    side = comparison.left if which == "left" else comparison.right
    if not side.rows:
        return [side.value({})] * 2
    seeds = set.intersection(*(set(rows[row]) for row in side.rows))
    values = [side.value({row: rows[row][seed] for row in side.rows}) for seed in sorted(seeds)]
    return values or [math.nan]
