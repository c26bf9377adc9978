"""The k-means attack: samples of one class lie together.

The number of clusters is the targets' number of classes, which the attack knows; under label skew a
client may hold a few classes only.
"""

import warnings
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class KmeansConfig(LabelAttackConfig):
    """A clustering of the targets by each view, for any number of classes."""

    kind: Literal["kmeans"] = "kmeans"
    starts: int = Field(default=10, ge=1)
    """Number of runs of k-means; the best one counts."""

    def build(self, known: Knowledge) -> "Kmeans":
        return Kmeans(self, known)


class Kmeans(LabelAttack):
    """An attack by scikit-learn's k-means, seeded by the attack's seed."""

    config: KmeansConfig

    def read(self, view: SeenView) -> list[Clue]:
        classes = self.known_labels.classes
        clusters = find_clusters(view.rows, classes, self.config.starts, self.known.seed)
        return [Clue(view.name, view.adapter, "accuracy", clusters)]


def find_clusters(rows_ND: Tensor, count: int, starts: int, seed: int) -> Tensor:
    """Cluster rows by the best of several runs, and return each row's cluster number."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    # scikit-learn takes seeds of 32 bits, and ours have 63.
    kmeans = KMeans(count, n_init=starts, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # If there are fewer different rows than clusters, some clusters stay empty.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.from_numpy(kmeans.fit_predict(rows_ND.float().numpy())).long()
