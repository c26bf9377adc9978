"""K-means: samples of one class lie together. As many clusters as the targets have classes, which
the attack is told: under label skew a client holds a few alone.
"""

import warnings
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class KmeansConfig(LabelAttackConfig):
    """Clusters targets by what is seen of them; any number of classes."""

    kind: Literal["kmeans"] = "kmeans"
    starts: int = Field(default=10, ge=1)
    """Runs of k-means, the best of which counts."""

    def build(self, known: Knowledge) -> "Kmeans":
        return Kmeans(self, known)


class Kmeans(LabelAttack):
    """scikit-learn's, from its seed."""

    options: KmeansConfig

    def read(self, view: SeenView) -> Clue:
        found = clusters(view.rows, self.known_labels.classes, self.options.starts, self.known.seed)
        return Clue(view.name, view.adapter, "accuracy", found)


def clusters(rows_ND: Tensor, count: int, starts: int, seed: int) -> Tensor:
    """The number of the cluster that each row is put in, best of several starts."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    made = KMeans(count, n_init=starts, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # fewer different rows than clusters: some stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.from_numpy(made.fit_predict(rows_ND.float().numpy())).long()
