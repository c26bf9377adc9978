"""Two ways to do the same work, timed in alternating blocks, and the ratio of what they take.

A machine whose speed drifts, drifts for both; quoted is the median of the pairs' ratios, with the
quartiles.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

Block = Callable[[], float]
"""Does a block of work and says how many seconds it took."""


@dataclass(frozen=True)
class Ratio:
    """How long the first side takes for each second of the other."""

    ratio: float
    low: float
    high: float
    first_s: float
    other_s: float
    pairs: int

    def inverted(self) -> "Ratio":
        """How many times as fast the first side is."""
        return Ratio(
            1 / self.ratio, 1 / self.high, 1 / self.low, self.first_s, self.other_s, self.pairs
        )


def interleaved(first: Block, other: Block, pairs: int) -> Ratio:
    """A B, B A, A B, ... after a block each to warm up."""
    first()
    other()
    times: list[tuple[float, float]] = []
    for pair in range(pairs):
        if pair % 2 == 0:
            one = first()
            times.append((one, other()))
        else:
            two = other()
            times.append((first(), two))
    ratios = sorted(one / two for one, two in times)
    low, middle, high = statistics.quantiles(ratios, n=4) if pairs > 1 else ratios * 3
    return Ratio(
        middle,
        low,
        high,
        statistics.median(one for one, _ in times),
        statistics.median(two for _, two in times),
        pairs,
    )
