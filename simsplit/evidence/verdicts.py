"""Verdicts on claims, computed from seeds and intervals and never from means alone.

A comparison holds where the whole interval of its difference says so, fails where the whole
interval denies it, and is not settled in between, or with one seed. A statement that is made in
many places may claim most of them. A table is judged by what its sentence says.

The interval is that of the left side minus the right one, over seeds. It is Student's, of the
differences seed by seed; Welch's where the sides share no seed. It is never narrower than what one
step of the measure would move, and where the sides are shares of counted trials, never narrower
than those of Clopper and Pearson leave (of a difference of two: by Newcombe's method). So equal
values on all seeds settle only what their number of trials can.

It is as sure as its number of seeds demands. A verdict can be wrong on one side of its interval
alone, where a 95 % interval errs in 2.5 % of draws. Looks at 3, 5, 7 and 10 seeds, until one
settles, would err in 6.9 %. So the seeds that a table plans have the 95 % interval, and the looks
after them have wider ones, which err in 2.3 % more: together in less than 5 %.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from simsplit.evidence.measures import Measure
from simsplit.evidence.statements import Comparison, Side
from simsplit.metrics.intervals import CONFIDENCE, clopper_pearson, compute_half_width

BySeed = Mapping[int, float]
"""Seed -> a figure of a setting's run."""
LOOKS = (3, 5, 7, 10)
"""Numbers of seeds at which a statement is looked at, until it is settled."""
_LATER = 0.974
"""The confidence of the intervals after the planned seeds."""
_NO_SPREAD = 1e-9


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

    def write_count(self, number: int) -> str:
        """Write how many have this verdict, such as `1 fails` and `2 fail`."""
        return f"{number} {self.value if number == 1 else _OF_MANY.get(self, self.value)}"


_WORST_FIRST = (
    ClaimVerdict.FAILS,
    ClaimVerdict.NOT_MEASURED,
    ClaimVerdict.NOT_SETTLED,
    ClaimVerdict.HOLDS,
    ClaimVerdict.OUT_OF_REACH,
)
_OF_MANY = {ClaimVerdict.HOLDS: "hold", ClaimVerdict.FAILS: "fail"}
"""Verdict -> its verb, as the plural has it."""


@dataclass(frozen=True)
class Judged:
    """One comparison beside what was measured of it."""

    comparison: Comparison
    verdict: ClaimVerdict
    seeds: int = 0
    mean: float = math.nan
    """Of left minus right."""
    interval: tuple[float, float] | None = None
    """The interval of left minus right; None with fewer than two seeds."""
    spread: float = math.nan
    """The standard deviation of left minus right over shared seeds."""
    missing: tuple[str, ...] = ()
    """Rows that have no measurement."""
    why_open: str = ""
    """Why it is not settled whatever its interval says; empty: the interval decides."""


@dataclass(frozen=True)
class VerdictCounts:
    """How many comparisons hold, fail and are open."""

    holds: int = 0
    fails: int = 0
    open: int = 0
    out_of_reach: int = 0
    beyond_tier: int = 0
    """Statements of the sentence of a kind that the tier does not measure at all."""

    @property
    def any(self) -> bool:
        """Whether there is a comparison at all."""
        return bool(self.holds or self.fails or self.open or self.out_of_reach)

    def __str__(self) -> str:
        holds = ClaimVerdict.HOLDS.write_count(self.holds)
        fails = ClaimVerdict.FAILS.write_count(self.fails)
        rest = {"out of reach": self.out_of_reach, "not at this tier": self.beyond_tier}
        words = "".join(f", {count} {what}" for what, count in rest.items() if count)
        return f"{holds}, {fails}, {self.open} open{words}"


def judge(
    comparison: Comparison,
    rows: Mapping[str, BySeed],
    measures: Mapping[str, Measure] | None = None,
    planned: int = LOOKS[0],
) -> Judged:
    """Judge a comparison by what was measured, what values can be, and the seeds planned."""
    missing = tuple(row for row in comparison.rows if not rows.get(row))
    if missing:
        return Judged(comparison, ClaimVerdict.NOT_MEASURED, missing=missing)
    measures = measures or {}
    mean, half, seeds, spread = _find_mean(comparison, rows, planned)
    judged = Judged(comparison, ClaimVerdict.NOT_SETTLED, seeds, mean)
    if half is None or not math.isfinite(mean):
        return judged
    ranges = [(mean - half, mean + half)]
    if counted := _find_counted(comparison, rows, measures, find_confidence(seeds, planned)):
        ranges.append(counted)
    else:
        step = _find_step(comparison, rows, measures)
        if half <= _NO_SPREAD * max(1.0, abs(mean)) and not step:
            why = "all seeds give one value, and how fine the measure is, is not known"
            return replace(judged, interval=(mean, mean), why_open=why)
        ranges.append((mean - step, mean + step))
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    verdict = _decide(comparison, low, high)
    return replace(judged, verdict=verdict, interval=(low, high), spread=spread)


def count_verdicts(verdicts: Iterable[ClaimVerdict]) -> VerdictCounts:
    """Count the comparisons that hold, fail, are open, and are out of reach."""
    counts = Counter(verdicts)
    return VerdictCounts(
        holds=counts[ClaimVerdict.HOLDS],
        fails=counts[ClaimVerdict.FAILS],
        open=sum(counts[verdict] for verdict in ClaimVerdict if verdict.is_open),
        out_of_reach=counts[ClaimVerdict.OUT_OF_REACH],
    )


def combine_verdicts(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """Return the worst of the verdicts on all that must hold; NOT_MEASURED for none.

    What is out of reach counts only where nothing else does.
    """
    return min(verdicts, key=_WORST_FIRST.index, default=ClaimVerdict.NOT_MEASURED)


def combine_most(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """Return whether more than half of the verdicts hold, or more than half fail."""
    reached = [verdict for verdict in verdicts if verdict is not ClaimVerdict.OUT_OF_REACH]
    for decided in (ClaimVerdict.HOLDS, ClaimVerdict.FAILS):
        if 2 * reached.count(decided) > len(reached):
            return decided
    settled = {ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.NOT_SETTLED}
    if settled.intersection(reached):
        return ClaimVerdict.NOT_SETTLED
    return combine_verdicts(verdicts)


def find_confidence(seeds: int, planned: int = LOOKS[0]) -> float:
    """Return how sure the interval of so many seeds must be, where so many were planned."""
    return CONFIDENCE if seeds <= planned else _LATER


def _decide(comparison: Comparison, low: float, high: float) -> ClaimVerdict:
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


def _find_mean(
    comparison: Comparison, rows: Mapping[str, BySeed], planned: int
) -> tuple[float, float | None, int, float]:
    """Return the mean of left minus right, half of its interval, the seeds, and the spread.

    One seed, or a mean that is not finite, has no interval, and settles nothing.
    """
    shared = sorted(set.intersection(*(set(rows[row]) for row in comparison.rows)))
    if not shared:
        return *_find_unpaired(comparison, rows, planned), math.nan
    values = [comparison.difference({r: rows[r][s] for r in comparison.rows}) for s in shared]
    mean, seeds = statistics.fmean(values), len(values)
    if not math.isfinite(mean) or seeds < 2:
        return mean, None, seeds, math.nan
    half = compute_half_width(values, find_confidence(seeds, planned))
    return mean, half, seeds, statistics.stdev(values)


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
    left, right = (_of_side(side, rows) for side in (comparison.left, comparison.right))
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


def _of_side(side: Side, rows: Mapping[str, BySeed]) -> Sequence[float]:
    """Compute one side on each seed that all of its rows have."""
    if not side.rows:
        return [side.value({})] * 2
    seeds = set.intersection(*(set(rows[row]) for row in side.rows))
    values = [side.value({row: rows[row][seed] for row in side.rows}) for seed in sorted(seeds)]
    return values or [math.nan]
