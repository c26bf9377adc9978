"""Beatrix (Ma et al., NDSS 2023) on smashed data: samples by the correlations of their features.

A sample's Gram matrix holds the products of all pairs of its features. A trigger changes which
features occur together, also where it changes each of them little. The paper has Gram matrices over
a layer's channels, of several orders, and medians and deviations of clean samples. A server has no
clean samples, and smashed data whose positions methods may have mixed. So medians are of all
samples of a class, features are the class's top principal directions, and all orders are the same,
since there is one position. A sample is suspicious by its mean deviation over all entries.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.per_sample import PerSampleConfig, measure_robust_z, project_on_directions


class BeatrixConfig(PerSampleConfig):
    """Share of a client's samples whose features correlate unlike others of their class."""

    kind: Literal["beatrix"] = "beatrix"
    directions: int = Field(default=16, ge=2)
    """Number of directions that count as features."""
    beyond: float = Field(default=3.0, gt=0)
    """Number of robust standard deviations above the median, of the logarithm of the deviation,
    beyond which a sample is suspicious."""

    def judge_class(self, rows_ND: Tensor, labels_N: Tensor, mine_M: Tensor) -> Tensor:
        reduced = project_on_directions(rows_ND[mine_M], self.directions)
        # Around the median: a trigger moves the mean of its class away from the clean samples.
        features = reduced - reduced.quantile(0.5, dim=0)
        first, second = torch.triu_indices(features.shape[1], features.shape[1])
        grams = features[:, first] * features[:, second]
        away = grams - grams.quantile(0.5, dim=0)
        usual = away.abs().quantile(0.5, dim=0).clamp_min(1e-12)
        deviation = (away.abs() / usual).mean(1).clamp_min(1e-12).log()
        return measure_robust_z(deviation) > self.beyond
