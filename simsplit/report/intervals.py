"""Means over texts and seeds need intervals; a bootstrap draws runs, and batches in each of them.

Texts of one batch share what a method draws for it, such as MixGuard's secrets, so whole batches
are drawn. Runs of other seeds trained other models, so runs are drawn first. With two or three
seeds the variation between seeds is known poorly, and the interval is rather too narrow.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simsplit.seeds import numpy_rng_for

Floats = NDArray[np.float64]
_DRAWS = 1000


def bootstrap_interval(runs: Sequence[Floats], size: int) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of runs' means, each from values in batches of `size`.

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
