"""This module computes confidence intervals of counted shares and of means over seeds."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a share of independent trials (Clopper and Pearson, 1934).

    If trials depend on each other, such as rounds of one client within a window, the true interval
    is wider.
    """
    from scipy.stats import beta

    if not trials:
        return 0.0, 1.0
    side = (1 - confidence) / 2
    low = float(beta.ppf(side, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - side, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def compute_half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return half the width of Student's interval of a mean; None for a single value."""
    from scipy.stats import t

    count = len(values)
    if count < 2:
        return None
    if not all(map(math.isfinite, values)):  # statistics.stdev fails on NaN
        return math.nan
    quantile = float(t.ppf((1 + confidence) / 2, count - 1))
    return quantile * statistics.stdev(values) / math.sqrt(count)
