"""Epsilon of many releases together, by dp-accounting.

Gaussian releases equal one Gaussian release: their precisions, 1 / sigma^2, add up, and epsilon is
exact (Balle and Wang, 2018). Releases of batches that are drawn, and that nobody sees who reads the
result, are subsampled Gaussians; their privacy-loss distributions (PLD) are composed, rounded up.
Neighbours differ in one sample, which is replaced.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

MOST_MULTIPLIER = 1e6
"""The largest noise that a search tries."""
WIDTH = 5e-4
"""Width of the intervals of a distribution: one of 1e-4 changes the fourth digit of epsilon, and
takes four times as long."""


@dataclass(frozen=True)
class Releases:
    """Releases of one mechanism, as one sample sees them."""

    multiplier: float
    """Standard deviation of the noise, in units of the distance that a replaced sample moves."""
    times: int
    rate: float = 1.0
    """The probability that the sample takes part in each; 1: it takes part, or is seen to."""


@lru_cache(maxsize=4096)
def compose(releases: Sequence[Releases], delta: float, width: float = WIDTH) -> float:
    """Return the epsilon of all releases together; raise ImportError without dp-accounting.

    `width` is that of the intervals of distributions: epsilon is rounded up, by more if it is wide.
    """
    from dp_accounting import get_epsilon_gaussian

    known = [each for each in releases if each.times]
    sigmas = [each.multiplier / math.sqrt(each.times) for each in known if each.rate == 1]
    # The noise of the one Gaussian release that equals all of them; 0 for none.
    sigma = sum(sigmas) if len(sigmas) < 2 else float(sum(each**-2 for each in sigmas) ** -0.5)
    drawn = [each for each in known if each.rate < 1]
    if drawn:
        return _compose_drawn(drawn, sigma, delta, width)
    return float(get_epsilon_gaussian(sigma, delta)) if sigma else 0.0


def _compose_drawn(drawn: Sequence[Releases], sigma: float, delta: float, width: float) -> float:
    # Coarser for little noise, whose losses would have millions of intervals.
    width = width * max(1.0, 1 / min(each.multiplier for each in drawn))
    parts = [
        _describe_one(each.multiplier, each.rate, width).self_compose(each.times) for each in drawn
    ]
    if sigma:
        parts.append(_describe_one(sigma, 1.0, width))
    whole = reduce(lambda one, other: one.compose(other), parts)
    return float(whole.get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _describe_one(multiplier: float, rate: float, width: float) -> Any:  # noqa: ANN401 - untyped
    """Return the privacy-loss distribution of one release."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    # Its sensitivity is that of leaving the sample out: half the distance.
    return privacy_loss_distribution.from_gaussian_mechanism(
        2 * multiplier,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=width,
    )


def find_multiplier(epsilon: float, delta: float, drawn: Releases) -> float:
    """Return the noise of drawn releases within a budget; at most a hundredth less would do.

    The multiplier of `drawn` is ignored. The result is infinite where no noise suffices.
    """

    def is_within(multiplier: float) -> bool:
        given = Releases(multiplier, drawn.times, drawn.rate)
        return compose((given,), delta, 4 * WIDTH) <= epsilon

    low, high = 0.0, 0.5
    while not is_within(high):
        low, high = high, 2 * high
        if high > MOST_MULTIPLIER:
            return math.inf
    while high - low > 4e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high  # the upper end, so that rounding never exceeds the budget
