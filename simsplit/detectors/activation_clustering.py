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

from simsplit.detectors.per_sample import PerSampleConfig, project_on_directions

STARTS = 4
"""Number of starts of k-means, the best of which counts."""


class ActivationClusteringConfig(PerSampleConfig):
    """Share of a client's samples that lie in the smaller of two clusters of their class."""

    kind: Literal["activation_clustering"] = "activation_clustering"
    components: int = Field(default=10, ge=1)
    """Number of principal directions in which a class is clustered."""
    smaller: float = Field(default=0.35, gt=0, lt=0.5)
    """Largest share of a class's samples that the smaller cluster may have to be suspicious."""
    silhouette: float = Field(default=0.2, ge=-1, le=1)
    """Smallest mean silhouette of two clusters that are apart."""

    def judge_class(self, rows_ND: Tensor, labels_N: Tensor, mine_M: Tensor) -> Tensor:
        from sklearn.cluster import KMeans
        from sklearn.metrics import silhouette_score

        reduced = project_on_directions(rows_ND[mine_M], self.components).numpy()
        found = KMeans(2, n_init=STARTS, random_state=0).fit_predict(reduced)
        member = torch.from_numpy(found).bool()
        small = member if 2 * int(member.sum()) <= len(member) else ~member
        if not 0 < small.double().mean() <= self.smaller:
            return torch.zeros_like(small)
        apart = bool(silhouette_score(reduced, found) >= self.silhouette)
        return small & apart
