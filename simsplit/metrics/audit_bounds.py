"""One run audits its privacy: correct guesses at secret coins bound epsilon from below.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023), theorem
5.2 and appendix D. Of m canaries each is drawn by a fair coin. An attacker that has seen the run
guesses r of the coins and abstains from the others; v guesses are right. If the run is (epsilon,
delta)-private with respect to one coin, v is hardly ever larger than a binomial variable of r
draws, each right with probability e^epsilon / (1 + e^epsilon); delta adds a little. So an epsilon
under which so many right guesses are too rare is refused.

The authors fix r beforehand. Here several r are tried, and several scores of the same canaries:
each try has its share of the failure probability (Bonferroni), so that the best one counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simsplit.metrics.intervals import CONFIDENCE

SHARES = (1.0, 0.3, 0.1, 0.03)
"""The shares of the canaries on which an attacker guesses: those with the surest scores."""
_STEPS = 24
"""Halvings of the interval that holds the bound."""


@dataclass(frozen=True)
class AuditBound:
    """A lower bound of epsilon, and the guesses that it rests on."""

    epsilon: float
    right: int
    guesses: int
    canaries: int
    score: str
    """The name of the score by which the guesses were made."""


def compute_p_value(
    right: int, guesses: int, canaries: int, *, epsilon: float, delta: float
) -> float:
    """Return the largest probability of as many right guesses under (epsilon, delta)-privacy."""
    from scipy.stats import binom

    assert 0 <= right <= guesses <= canaries, "guesses are at some of the canaries"
    share = 1 / (1 + math.exp(-epsilon))
    reached = float(binom.sf(right - 1, guesses, share))
    # Entry i is the probability of right - i to right - 1 right guesses, over i.
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))
    most = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, reached + 2 * canaries * delta * most)


def bound_epsilon(
    right: int,
    guesses: int,
    canaries: int,
    *,
    delta: float,
    failure: float = 1 - CONFIDENCE,
) -> float:
    """Return an epsilon below the true one, except with this probability of failure."""

    def is_refused(epsilon: float) -> bool:
        return compute_p_value(right, guesses, canaries, epsilon=epsilon, delta=delta) < failure

    low, high = 0.0, 1.0
    while is_refused(high):
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refused(middle) else (low, middle)
    return low


def audit(
    scores: Mapping[str, NDArray[np.floating]], first: NDArray[np.bool_], *, delta: float
) -> AuditBound:
    """Return the best lower bound over scores of canaries and over shares of guesses.

    A score above 0 is a guess that the coin chose the first of a pair (`first`); the larger, the
    surer.
    """
    count = len(first)
    sizes = sorted({max(1, round(share * count)) for share in SHARES})
    failure = (1 - CONFIDENCE) / (len(scores) * len(sizes))
    made = []
    for name, values in scores.items():
        hits = (values > 0) == first
        surest = np.argsort(-np.abs(values), kind="stable")
        for size in sizes:
            right = int(hits[surest[:size]].sum())
            epsilon = bound_epsilon(right, size, count, delta=delta, failure=failure)
            made.append(AuditBound(epsilon, right, size, count, name))
    return max(made, key=lambda each: (each.epsilon, each.right / each.guesses))
