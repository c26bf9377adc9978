"""This module measures how much scores and clusters leak of labels and members, and chance too.

An attacker that scores samples does not know which end is which class, and one that clusters them
does not know which cluster is which class. So the better of an AUC's two signs counts, and the best
match of clusters with classes. Both exceed chance even if nothing leaks, by more the fewer samples
there are; `simulate_chance_auc` and `simulate_chance` measure by how much, by permuting labels.

An average over all thresholds hides an attack that is sure of a few samples (Carlini et al. 2022).
So the share of members found is measured where at most 1 % and .1 % of the others are taken for
members, beside the AUC.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simsplit.metrics.intervals import CONFIDENCE, clopper_pearson
from simsplit.metrics.metric_registry import MEMBER_AUC, MEMBER_RATES

DRAWS = 1000
"""Number of bootstrap samples and of permutations."""
Numbers = NDArray[np.int64]
Hits = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""A function of guesses and labels that returns which guesses are right."""


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def measure_auc(
    scores: NDArray[np.floating],
    positive: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    signed: bool = False,
) -> Interval:
    """Compute the ROC AUC under the better of the two signs, with a bootstrap interval.

    The bootstrap draws the samples of each class again and keeps the sign. `signed`: larger scores
    are for positives, whatever the AUC.
    """
    values, place = np.unique(scores, return_inverse=True)
    positives, others = (
        _count_redrawn(place[each], len(values), rng) for each in (positive, ~positive)
    )
    below = others.cumsum(1) - others / 2  # ties count a half
    drawn = (positives * below).sum(1) / (positives[0].sum() * others[0].sum())
    whole, kept = drawn[0], drawn[1:]
    if signed or whole >= 0.5:
        return Interval(float(whole), *_find_middle(kept))
    return Interval(1 - float(whole), *_find_middle(1 - kept))


def _count_redrawn(place: Numbers, places: int, rng: np.random.Generator) -> Numbers:
    """Count the samples at each place: of the samples themselves, then of each bootstrap sample."""
    # counts by place let all bootstrap AUCs be computed at once, without sorting each sample
    drawn = place[rng.integers(len(place), size=(DRAWS, len(place)))]
    every = np.concatenate([place[None], drawn]) + places * np.arange(DRAWS + 1)[:, None]
    counts: Numbers = np.bincount(every.ravel(), minlength=places * (DRAWS + 1))
    return counts.reshape(DRAWS + 1, places)


def match_clusters(clusters: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Return which samples are in their class's cluster, under the best one-to-one match."""
    from scipy.optimize import linear_sum_assignment

    counts = _count(clusters, labels)
    class_of = np.full(len(counts), -1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    class_of[rows] = columns
    hit: NDArray[np.bool_] = class_of[clusters] == labels
    return hit


def match_majority(clusters: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Return which samples are of their cluster's largest class; clusters may share a class."""
    hit: NDArray[np.bool_] = _count(clusters, labels).argmax(1)[clusters] == labels
    return hit


def match_equal(guesses: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Return which guesses equal their labels."""
    hit: NDArray[np.bool_] = guesses == labels
    return hit


def _count(clusters: Numbers, labels: Numbers) -> Numbers:
    """Count the samples of each cluster and class."""
    counts = np.zeros((int(clusters.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    return counts


def measure_share(hits: NDArray[np.bool_]) -> Interval:
    """Compute a share of samples, with its exact interval (Clopper and Pearson)."""
    return Interval(float(hits.mean()), *clopper_pearson(int(hits.sum()), len(hits)))


def simulate_chance_auc(
    positive: NDArray[np.bool_], rng: np.random.Generator, tries: int = 1
) -> Interval:
    """Compute the AUC of random scores: its mean, and the middle 95 % of permutations.

    Of several tries, independent of one another, the best counts.
    """
    count, hits = len(positive), int(positive.sum())
    best = np.zeros(DRAWS)
    for _ in range(tries):
        permuted = rng.permuted(np.tile(positive, (DRAWS, 1)), axis=1)
        ranks = permuted @ np.arange(count, dtype=np.float64)
        # Mann-Whitney's U, as a share of all pairs, is the AUC
        drawn = (ranks - hits * (hits - 1) / 2) / (hits * (count - hits))
        best = np.maximum(best, np.maximum(drawn, 1 - drawn))
    return Interval(float(best.mean()), *_find_middle(best))


def simulate_chance(labels: Numbers, hits: Hits, rng: np.random.Generator) -> Interval:
    """Compute the share that random guesses hit if they know only the sizes of the classes."""
    drawn = np.array([hits(rng.permutation(labels), labels).mean() for _ in range(DRAWS)])
    return Interval(float(drawn.mean()), *_find_middle(drawn))


def measure_majority(labels: Numbers) -> Interval:
    """Compute the share of the largest class, with its exact interval."""
    return measure_share(labels == np.bincount(labels).argmax())


def _find_middle(drawn: NDArray[np.floating]) -> tuple[float, float]:
    """Return the bounds of the middle 95 %."""
    side = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (side, 1 - side))
    return float(low), float(high)


def measure_members(
    scores: NDArray[np.floating], members: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Interval]:
    """Measure each figure of scores, larger ones for likelier members, with its interval."""
    figures = {name: _measure_rate(scores, members, rate) for name, rate in MEMBER_RATES.items()}
    return {**figures, MEMBER_AUC: measure_auc(scores, members, rng, signed=True)}


def measure_coin(members: NDArray[np.bool_]) -> dict[str, float]:
    """Compute what each figure of members is on average where scores say nothing.

    The threshold is the best score of an other that may not pass it. With few others, so many more
    members than the rate pass by chance.
    """
    others = np.count_nonzero(~members)
    rates = {
        name: (_count_allowed(members, rate) + 1) / (others + 1)
        for name, rate in MEMBER_RATES.items()
    }
    return {**rates, MEMBER_AUC: 0.5}


def _count_allowed(members: NDArray[np.bool_], rate: float) -> int:
    """Count the others that may pass a threshold."""
    return int(rate * np.count_nonzero(~members))


def _measure_rate(
    scores: NDArray[np.floating], members: NDArray[np.bool_], rate: float
) -> Interval:
    """Measure the largest share of members above a threshold that few others pass."""
    allowed = _count_allowed(members, rate)
    others = np.sort(scores[~members])[::-1]
    threshold = others[allowed] if allowed < len(others) else -np.inf
    return measure_share(scores[members] > threshold)


def trace_rates(
    scores: NDArray[np.floating], members: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares of others and of members above each threshold, from 0 to 1."""
    from sklearn.metrics import roc_curve

    fpr, tpr, _ = roc_curve(members, scores)
    return fpr, tpr
