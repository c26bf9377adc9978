"""This module computes confidence intervals of counted shares and of means over texts and seeds."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simsplit.seeds import numpy_rng_for

CONFIDENCE = 0.95
Floats = NDArray[np.float64]
_DRAWS = 1000


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a share of independent trials (Clopper and Pearson, 1934).

    If trials depend on each other, such as rounds of one client within a window, the true interval
    is wider.
    """
    from scipy.special import betaincinv  # scipy.stats takes ten times as long to import

    if not trials:
        return 0.0, 1.0
    side = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, side)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - side)) if hits < trials else 1.0
    return low, high


def compute_half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return half the width of Student's interval of a mean; None for a single value."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        return None
    if not all(map(math.isfinite, values)):  # statistics.stdev fails on NaN
        return math.nan
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(count)


def compute_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values; NaN unless all of them are finite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def bootstrap_interval(runs: Sequence[Floats], size: int) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of runs' means, each from values in batches of `size`.

    A bootstrap draws runs first, since other seeds trained other models, and then whole batches,
    whose texts share what a method draws for them, such as MixGuard's secrets. With two or three
    seeds their variation is known poorly, and the interval is rather too narrow.

    Return None for a single batch of a single run, which has no variation to measure.
    """
    runs = [values for values in runs if len(values)]
    if not runs or (len(runs) == 1 and len(runs[0]) <= size):
        return None
    rng = numpy_rng_for(0, "intervals")
    sums_RB, counts_RB = _sum_batches(runs, size)
    held_R = (counts_RB > 0).sum(1)
    means_D, places = np.zeros(_DRAWS), np.arange(counts_RB.shape[1])
    for _ in runs:
        run = rng.integers(len(runs), size=(_DRAWS, 1))
        batch = (rng.random((_DRAWS, len(places))) * held_R[run]).astype(np.int64)
        there = places < held_R[run]
        means = (sums_RB[run, batch] * there).sum(1) / (counts_RB[run, batch] * there).sum(1)
        means_D += means / len(runs)
    low, high = np.quantile(means_D, (0.025, 0.975))
    return float(low), float(high)


def _sum_batches(runs: Sequence[Floats], size: int) -> tuple[Floats, Floats]:
    """Return the sum and count of each run's batches, with zeros after the last one."""
    most = max(-(-len(values) // size) for values in runs)
    padded = np.zeros((2, len(runs), most * size))
    for row, values in enumerate(runs):
        padded[:, row, : len(values)] = values, np.ones(len(values))
    sums_RB, counts_RB = padded.reshape(2, len(runs), most, size).sum(3)
    return sums_RB, counts_RB
