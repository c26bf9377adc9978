"""Spectral signatures (Tran et al., NeurIPS 2018) on smashed data.

In each class, samples are centred and projected on the direction of the largest variance. Poisoned
samples lie far out along it. The paper removes a fixed number of samples, 1.5 times as many as may
be poisoned; here a sample is suspicious beyond a robust distance from the median, so that a class
that nobody poisons has none.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from simsplit.detectors.per_sample import PerSampleConfig, measure_robust_z, project_on_directions


class SpectralSignaturesConfig(PerSampleConfig):
    """Share of a client's samples that lie far out in the top direction of their class."""

    kind: Literal["spectral_signatures"] = "spectral_signatures"
    beyond: float = Field(default=4.0, gt=0)
    """Number of robust standard deviations from the median beyond which a sample is suspicious."""

    def judge_class(self, rows_ND: Tensor, labels_N: Tensor, mine_M: Tensor) -> Tensor:
        along = project_on_directions(rows_ND[mine_M], 1)[:, 0]
        return measure_robust_z(along).abs() > self.beyond
