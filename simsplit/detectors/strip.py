"""STRIP (Gao et al., ACSAC 2019) on smashed data: samples by what their blends look like.

A sample is blended with samples of other classes. A blend of a clean sample looks like either
class, so a prediction for it is uncertain. A blend of a sample with a strong trigger looks like the
target, whatever it is blended with. The paper blends inputs and asks the network. A server of a U
shape has no tail, so smashed data are blended here, and a prediction follows from the squared
distances to the classes' centres, relative to the distances of the centres from each other. A
sample is suspicious if the mean entropy of its blends is far below the median of its class.

With `signal: features` the samples are what the trunk made of them, which is nearer to asking the
network. Use it for images: in a first layer's output a patch does not outweigh the rest of its
image, and the detector flags nobody.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.by_class import sum_by_class
from simsplit.detectors.per_sample import PerSampleConfig, measure_robust_z
from simsplit.seeds import rng_for


class StripConfig(PerSampleConfig):
    """Share of a client's samples whose blends with other classes are all predicted as one."""

    kind: Literal["strip"] = "strip"
    blends: int = Field(default=16, ge=1)
    """Number of samples of other classes that each sample is blended with."""
    weight: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the sample in a blend; the other one has the rest."""
    beyond: float = Field(default=4.0, gt=0)
    """Number of robust standard deviations below the median entropy beyond which a sample is
    suspicious."""

    def judge_class(self, rows_ND: Tensor, labels_N: Tensor, mine_M: Tensor) -> Tensor:
        totals, counts = sum_by_class(rows_ND, labels_N, int(labels_N.max()) + 1)
        known = counts > 0
        if int(known.sum()) < 2:
            return torch.zeros(len(mine_M), dtype=torch.bool)
        centres = totals[known] / counts[known][:, None]
        apart = torch.cdist(centres, centres).square()
        scale = (apart.sum() / (len(centres) * (len(centres) - 1))).clamp_min(1e-12)
        others_MD = rows_ND[labels_N != labels_N[mine_M[0]]]
        entropies = self._measure_entropies(rows_ND[mine_M], others_MD, centres, scale)
        return measure_robust_z(entropies) < -self.beyond

    def _measure_entropies(
        self, rows_ND: Tensor, others_MD: Tensor, centres_CD: Tensor, scale: Tensor
    ) -> Tensor:
        """Return each row's mean entropy over its blends with other rows."""
        # One draw for all: rows of a class are compared with each other.
        rng = rng_for(0, "detectors", "strip")
        drawn = torch.randint(len(others_MD), (self.blends,), generator=rng)
        total = torch.zeros(len(rows_ND), dtype=rows_ND.dtype)
        for other in others_MD[drawn]:
            blend = self.weight * rows_ND + (1 - self.weight) * other
            logits = -torch.cdist(blend, centres_CD).square() / scale
            total += torch.distributions.Categorical(logits=logits).entropy()
        return total / self.blends
