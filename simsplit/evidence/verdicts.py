"""Verdicts on claims, computed from seeds and intervals and never from means alone.

A comparison holds where the whole interval of its difference says so, fails where the whole
interval denies it, and is not settled in between, or with one seed. The interval is the 95 % one of
the planned seeds, and wider with more, since more looks err more often. A statement that is made in
many places may claim most of them. A table is judged by what its sentence says.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from simsplit.evidence.difference_intervals import BySeed as BySeed
from simsplit.evidence.difference_intervals import find_difference
from simsplit.evidence.looks import LOOKS
from simsplit.evidence.measures import Measure
from simsplit.evidence.statements import Comparison


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
    """Judge a comparison by what was measured of each row, and by what its values can be.

    `planned` is the number of seeds that the table plans.
    """
    missing = tuple(row for row in comparison.rows if not rows.get(row))
    if missing:
        return Judged(comparison, ClaimVerdict.NOT_MEASURED, missing=missing)
    found = find_difference(comparison, rows, measures or {}, planned)
    verdict = _decide(comparison, found.interval)
    why = ""
    if found.has_no_spread:
        verdict = ClaimVerdict.NOT_SETTLED
        why = "all seeds give one value, and how fine the measure is, is not known"
    return Judged(
        comparison,
        verdict,
        found.seeds,
        found.mean,
        found.interval,
        spread=found.spread,
        why_open=why,
    )


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


def _decide(comparison: Comparison, interval: tuple[float, float] | None) -> ClaimVerdict:
    if interval is None:
        return ClaimVerdict.NOT_SETTLED  # one seed has no interval, and settles nothing
    low, high = interval
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
