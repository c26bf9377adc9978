"""How sure a share is that was counted, or a mean over seeds."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934), of independent trials.

    Trials that depend on each other, such as one client's rounds under a running window, say less
    than as many independent ones: the true interval is then wider.
    """
    from scipy.stats import beta

    if not trials:
        return 0.0, 1.0
    side = (1 - confidence) / 2
    low = float(beta.ppf(side, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - side, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Half the width of Student's interval of a mean; None for a single value."""
    from scipy.stats import t

    count = len(values)
    if count < 2:
        return None
    quantile = float(t.ppf((1 + confidence) / 2, count - 1))
    return quantile * statistics.stdev(values) / math.sqrt(count)
