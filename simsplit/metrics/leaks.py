"""How much scores and clusters tell of labels, and how much chance alone would.

Whoever scores samples does not know which side is which class, and whoever clusters them does not
know which cluster is which: so of an AUC the better sign counts, and of clusters the best match
with classes. Both are then better than a coin even where nothing leaks, by more the fewer samples
there are; `chance_of_auc` and `chance_of` say how much better, by permuting labels.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simsplit.metrics.intervals import CONFIDENCE, clopper_pearson

DRAWS = 1000
Numbers = NDArray[np.int64]
Hits = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""Which guesses are right, of guesses and labels."""


class Told(NamedTuple):
    """A figure, and its 95 % interval."""

    value: float
    low: float
    high: float


def told_auc(
    scores: NDArray[np.floating], positive: NDArray[np.bool_], rng: np.random.Generator
) -> Told:
    """The ROC AUC under the better of the two signs, with a bootstrap interval: the samples of each
    class are drawn again, the sign is kept.
    """
    values, place = np.unique(scores, return_inverse=True)
    held, others = (_redrawn(place[each], len(values), rng) for each in (positive, ~positive))
    below = others.cumsum(1) - others / 2  # ties count a half
    drawn = (held * below).sum(1) / (held[0].sum() * others[0].sum())
    whole, kept = drawn[0], drawn[1:]
    low, high = _middle(kept if whole >= 0.5 else 1 - kept)
    return Told(max(float(whole), 1 - float(whole)), low, high)


def _redrawn(place: Numbers, places: int, rng: np.random.Generator) -> Numbers:
    """How many samples are at each place: as they are, and each time that they are drawn again."""
    drawn = place[rng.integers(len(place), size=(DRAWS, len(place)))]
    every = np.concatenate([place[None], drawn]) + places * np.arange(DRAWS + 1)[:, None]
    counts: Numbers = np.bincount(every.ravel(), minlength=places * (DRAWS + 1))
    return counts.reshape(DRAWS + 1, places)


def matched(clusters: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Which samples are in the cluster of their class, under the best one-to-one match."""
    from scipy.optimize import linear_sum_assignment

    counts = _counts(clusters, labels)
    class_of = np.full(len(counts), -1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    class_of[rows] = columns
    hit: NDArray[np.bool_] = class_of[clusters] == labels
    return hit


def pure(clusters: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Which samples are of their cluster's largest class; several clusters may have the same."""
    hit: NDArray[np.bool_] = _counts(clusters, labels).argmax(1)[clusters] == labels
    return hit


def equal(guesses: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Which classes are guessed right."""
    hit: NDArray[np.bool_] = guesses == labels
    return hit


def _counts(clusters: Numbers, labels: Numbers) -> Numbers:
    """Samples of each cluster and class."""
    counts = np.zeros((int(clusters.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (clusters, labels), 1)
    return counts


def told_share(hits: NDArray[np.bool_]) -> Told:
    """A share of samples, with its exact interval (Clopper and Pearson)."""
    return Told(float(hits.mean()), *clopper_pearson(int(hits.sum()), len(hits)))


def chance_of_auc(positive: NDArray[np.bool_], rng: np.random.Generator) -> Told:
    """The AUC of scores that know nothing: its mean, and where 95 % of permutations lie."""
    count, held = len(positive), int(positive.sum())
    permuted = rng.permuted(np.tile(positive, (DRAWS, 1)), axis=1)
    ranks = permuted @ np.arange(count, dtype=np.float64)
    drawn = (ranks - held * (held - 1) / 2) / (held * (count - held))
    better = np.maximum(drawn, 1 - drawn)
    return Told(float(better.mean()), *_middle(better))


def chance_of(labels: Numbers, hits: Hits, rng: np.random.Generator) -> Told:
    """The share that guesses hit which know nothing but how large the classes are."""
    drawn = np.array([hits(rng.permutation(labels), labels).mean() for _ in range(DRAWS)])
    return Told(float(drawn.mean()), *_middle(drawn))


def majority_of(labels: Numbers) -> Told:
    """The share of the largest class, with its exact interval."""
    return told_share(labels == np.bincount(labels).argmax())


def _middle(drawn: NDArray[np.floating]) -> tuple[float, float]:
    """The bounds of the middle 95 %."""
    side = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (side, 1 - side))
    return float(low), float(high)
