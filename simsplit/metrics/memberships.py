"""This module measures how well scores tell members from others, at few false alarms.

An average over all thresholds hides an attack that is sure of a few samples (Carlini et al. 2022).
So the share of members found is measured where at most 1 % and .1 % of the others are taken for
members, beside the AUC.
"""

import numpy as np
from numpy.typing import NDArray

from simsplit.metrics.leaks import Interval, measure_auc, measure_share

RATES = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}
"""Figure -> the largest share of others that are taken for members."""
AUC = "auc"


def measure_members(
    scores: NDArray[np.floating], members: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Interval]:
    """Measure each figure of scores, larger ones for likelier members, with its interval."""
    figures = {name: _measure_rate(scores, members, rate) for name, rate in RATES.items()}
    return {**figures, AUC: measure_auc(scores, members, rng, signed=True)}


def _measure_rate(
    scores: NDArray[np.floating], members: NDArray[np.bool_], rate: float
) -> Interval:
    """Measure the largest share of members above a threshold that few others pass."""
    allowed = int(rate * np.count_nonzero(~members))
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
