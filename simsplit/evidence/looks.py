"""When seeds are looked at, and how sure an interval must be then, so that verdicts stay 95 % sure.

A verdict can be wrong on one side of its interval alone, where a 95 % interval errs in 2.5 % of
draws. Looks at 3, 5, 7 and 10 seeds, until one settles, would err in 6.9 %. So the seeds that a
table plans have the 95 % interval, and the looks after them have wider ones, which err in 2.3 %
more: together in less than 5 %.
"""

from simsplit.metrics.intervals import CONFIDENCE

LOOKS = (3, 5, 7, 10)
"""Numbers of seeds at which a statement is looked at, until it is settled."""
_LATER = 0.974
"""The confidence of the intervals after the planned seeds."""


def find_confidence(seeds: int, planned: int = LOOKS[0]) -> float:
    """Return how sure the interval of so many seeds must be, where so many were planned."""
    return CONFIDENCE if seeds <= planned else _LATER
