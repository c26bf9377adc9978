"""Spectral signatures (Tran et al., NeurIPS 2018) on smashed data.

In each class, samples are centred and projected on the direction of the largest variance. Poisoned
samples lie far out along it. The paper removes a fixed number of samples, 1.5 times as many as may
be poisoned; here a sample is suspicious beyond a robust distance from the median, so that a class
that nobody poisons has none.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.per_sample import (
    PerSample,
    PerSampleConfig,
    measure_robust_z,
    project_on_directions,
)


class SpectralSignaturesConfig(PerSampleConfig):
    """Share of a client's samples that lie far out in the top direction of their class."""

    kind: Literal["spectral_signatures"] = "spectral_signatures"
    beyond: float = Field(default=4.0, gt=0)
    """Number of robust standard deviations from the median beyond which a sample is suspicious."""

    def build(self) -> "SpectralSignatures":
        return SpectralSignatures(self)


class SpectralSignatures(PerSample):
    """A detector that suspects samples far out in the top direction."""

    config: SpectralSignaturesConfig

    def find_suspicious(self, rows_ND: Tensor, labels_N: Tensor, classes: int) -> Tensor:
        """Return a mask of the samples far from the median of their class's top direction."""
        suspicious = torch.zeros(len(rows_ND), dtype=torch.bool)
        for label in range(classes):
            mine = (labels_N == label).nonzero()[:, 0]
            if len(mine) >= 2 * self.config.fewest:
                along = project_on_directions(rows_ND[mine], 1)[:, 0]
                suspicious[mine] = measure_robust_z(along).abs() > self.config.beyond
        return suspicious
