"""A probe: gradient-boosted trees trained on what one server sees, with a part of the labels known.

P3EFT trains XGBoost with its defaults on one server's messages; these are scikit-learn's trees with
the same settings (100 trees a class of depth 6, rate 0.3, penalty 1, leaves of any size), and with
all their bins: fewer than samples would blur where two classes part. They fit what they were told
perfectly; what they make of the other targets counts. As it knows labels, it stands apart from the
other attacks' worst leak.
"""

from typing import Literal

import torch
from pydantic import Field

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class ProbeConfig(LabelAttackConfig):
    """Learns classes from the targets whose labels it is told; scored on the others."""

    kind: Literal["probe"] = "probe"
    known: float = Field(default=0.5, gt=0, lt=1)
    """Share of each class's targets whose labels it is told."""
    trees: int = Field(default=100, ge=1)
    """Trees, of each class where there are more than two."""

    @property
    def known_share(self) -> float:
        """As its field says."""
        return self.known

    def build(self, known: Knowledge) -> "ProbeAttack":
        return ProbeAttack(self, known)


class ProbeAttack(LabelAttack):
    """Fits trees, and reads the targets that it was told nothing of."""

    options: ProbeConfig

    def read(self, view: SeenView) -> Clue | None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        told = self.known_labels
        left = torch.ones(len(view.rows), dtype=torch.bool)
        left[told.rows] = False
        if not left.any() or len(told.labels.unique()) < 2:
            return None
        trees = HistGradientBoostingClassifier(
            learning_rate=0.3,
            max_iter=self.options.trees,
            max_leaf_nodes=None,
            max_depth=6,
            min_samples_leaf=1,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=self.known.seed % 2**32,
        )
        rows = view.rows.numpy()
        trees.fit(rows[told.rows], told.labels.numpy())
        guess = torch.from_numpy(trees.predict(rows[left.numpy()])).long()
        return Clue(view.name, view.adapter, "accuracy", guess, left.nonzero()[:, 0], named=True)
