"""Activation clustering (Chen et al., SafeAI 2019) on smashed data.

In each class, samples are reduced to their top principal directions (the paper: independent
components) and split into two clusters. The samples of the smaller one are suspicious if it is
small and the clusters are apart, by the silhouette. In a class that nobody poisons, two clusters
are about equally large, or not apart.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.per_sample import PerSample, PerSampleConfig, project_on_directions

_STEPS = 25


class ActivationClusteringConfig(PerSampleConfig):
    """Share of a client's samples that lie in the smaller of two clusters of their class."""

    kind: Literal["activation_clustering"] = "activation_clustering"
    components: int = Field(default=10, ge=1)
    """Number of principal directions in which a class is clustered."""
    smaller: float = Field(default=0.35, gt=0, lt=0.5)
    """Largest share of a class's samples that the smaller cluster may have to be suspicious."""
    silhouette: float = Field(default=0.2, ge=-1, le=1)
    """Smallest mean silhouette of two clusters that are apart."""

    def build(self) -> "ActivationClustering":
        return ActivationClustering(self)


class ActivationClustering(PerSample):
    """A detector that suspects small clusters that lie apart."""

    config: ActivationClusteringConfig

    def find_suspicious(self, rows_ND: Tensor, labels_N: Tensor, classes: int) -> Tensor:
        """Return a mask of the samples in small clusters that lie apart."""
        suspicious = torch.zeros(len(rows_ND), dtype=torch.bool)
        for label in range(classes):
            mine = (labels_N == label).nonzero()[:, 0]
            if len(mine) < 2 * self.config.fewest:
                continue
            reduced = project_on_directions(rows_ND[mine], self.config.components)
            small = split_in_two(reduced)
            share = small.double().mean()
            if 0 < share <= self.config.smaller:
                apart = measure_silhouette(reduced, small) >= self.config.silhouette
                suspicious[mine] = small & apart
        return suspicious


def split_in_two(rows_ND: Tensor) -> Tensor:
    """Return a mask of the smaller of two clusters, by k-means."""
    # From the most distant row and the row most distant from it: a fixed start needs no draw.
    first = (rows_ND - rows_ND.mean(0)).norm(dim=1).argmax()
    second = (rows_ND - rows_ND[first]).norm(dim=1).argmax()
    centres = rows_ND[[int(first), int(second)]]
    member = torch.zeros(len(rows_ND), dtype=torch.bool)
    for _ in range(_STEPS):
        member = torch.cdist(rows_ND, centres).argmin(1).bool()
        if member.all() or not member.any():
            break
        centres = torch.stack([rows_ND[~member].mean(0), rows_ND[member].mean(0)])
    return member if 2 * int(member.sum()) <= len(member) else ~member


def measure_silhouette(rows_ND: Tensor, member_N: Tensor) -> float:
    """Return the mean silhouette of two clusters, both with a row at least."""
    distances = torch.cdist(rows_ND, rows_ND)
    within, other = distances[:, member_N].sum(1), distances[:, ~member_N].sum(1)
    count, rest = int(member_N.sum()), int((~member_N).sum())
    # A row's own distance of zero does not count in its cluster's mean.
    own = torch.where(member_N, within / max(1, count - 1), other / max(1, rest - 1))
    across = torch.where(member_N, other / rest, within / count)
    return float(((across - own) / torch.maximum(own, across).clamp_min(1e-12)).mean())
