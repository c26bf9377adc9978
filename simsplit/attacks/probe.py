"""A probe: gradient-boosted trees, trained on one server's views with a part of the labels known.

P3EFT trains XGBoost with its defaults on one server's messages. These are scikit-learn's trees with
the same settings (100 trees of depth 6 for each class, rate 0.3, penalty 1, leaves of any size) and
the most bins that scikit-learn allows, since fewer would blur the border between two classes. The
trees fit the known labels perfectly, so only the predictions for the other targets are scored. As
the probe knows labels, it does not count in the worst leak of the label attacks.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.few_labels import Naming
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat


class ProbeConfig(LabelAttackConfig):
    """Trees trained on targets with known labels, and scored on the other targets."""

    kind: Literal["probe"] = "probe"
    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CLASSES, Knows.LABELS))
    known: float = Field(default=0.5, gt=0, lt=1)
    """Share of each class's targets whose labels it knows."""
    trees: int = Field(default=100, ge=1)
    """Number of trees; with more than two classes, of each class."""

    @property
    def known_share(self) -> float:
        return self.known

    def build(self, known: Knowledge) -> "ProbeAttack":
        return ProbeAttack(self, known)


class ProbeAttack(Naming):
    """An attack that fits trees and predicts the targets with unknown labels."""

    config: ProbeConfig

    def name(self, rows: Tensor) -> Tensor:
        from sklearn.ensemble import HistGradientBoostingClassifier

        trees = HistGradientBoostingClassifier(
            learning_rate=0.3,
            max_iter=self.config.trees,
            max_leaf_nodes=None,
            max_depth=6,
            min_samples_leaf=1,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=self.known.seed % 2**32,
        )
        given, seen = self.known_labels, rows.numpy()
        trees.fit(seen[given.rows], given.labels.numpy())
        return torch.from_numpy(trees.predict(seen)).long()
