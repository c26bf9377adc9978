"""The norm attack (Li et al. 2022): rows of one class are longer than those of the other.

For two classes alone, as published: of more it says nothing, and has no row in the table.
"""

from typing import ClassVar, Literal

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class NormConfig(LabelAttackConfig):
    """Scores targets by the length of what is seen of them; two classes alone."""

    kind: Literal["norm"] = "norm"
    two_classes: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "NormAttack":
        return NormAttack(self, known)


class NormAttack(LabelAttack):
    """Scores each sample by the norm of its row: classes have gradients of different lengths."""

    def read(self, view: SeenView) -> Clue | None:
        if self.known_labels.classes != 2 or view.name == "direction":  # of length one
            return None
        return Clue(view.name, view.adapter, "auc", view.rows.norm(dim=1))
