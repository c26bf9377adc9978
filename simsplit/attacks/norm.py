"""The norm attack (Li et al. 2022): rows of one class are longer than rows of the other.

As published, it works for two classes only; with more it has no row in the table.
"""

from typing import ClassVar, Literal

from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig


class NormConfig(LabelAttackConfig):
    """A score of each target: the norm of its row in a view; for two classes only."""

    kind: Literal["norm"] = "norm"
    two_classes: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "NormAttack":
        return NormAttack(self, known)


class NormAttack(LabelAttack):
    """An attack that scores each sample by the norm of its row."""

    def read(self, view: SeenView) -> Clue | None:
        if self.known_labels.classes != 2 or view.name == "direction":  # its rows have length 1
            return None
        return Clue(view.name, view.adapter, "auc", view.rows.norm(dim=1))
