"""A party reads labels in the signs of the gradients that come back to it (Fu et al. 2022, 4.1).

Where heads put out scores of the classes and the trunk only adds them (`join: sum`, a trunk that
changes nothing), the gradient of a sample's scores is its predicted probabilities less 1 at its
class: one value alone is negative. So the smallest value is the class. Behind a trunk that learns,
the smallest value is a guess that depends on the trunk, and tells less.
"""

from typing import ClassVar, Literal

from pydantic import Field

from simsplit.attacks.knowledge import Knowledge, SeenView, ViewName
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat


class DirectLabelsConfig(LabelAttackConfig):
    """The place of the smallest value of a sample's gradient, as its class."""

    kind: Literal["direct_labels"] = "direct_labels"
    by: str = Field(default="party 0", pattern=r"^party \S.*$")
    """The party that is curious: its number or name."""
    threat: ClassVar[Threat] = Threat(
        (Sees.RETURNED_GRADIENTS,),
        (Knows.CLASSES,),
        limits="heads that put out a score for each class, which the trunk adds",
    )
    views: tuple[ViewName, ...] = ("gradient",)
    """The view that it reads: the gradients of what it sent."""

    def build(self, known: Knowledge) -> "DirectLabels":
        return DirectLabels(self, known)


class DirectLabels(LabelAttack):
    """An attack that takes the smallest value of each row."""

    def read(self, view: SeenView) -> list[Clue]:
        # Which column stands for which class is the heads' secret: the judge matches them.
        return [Clue(view.name, view.adapter, "accuracy", view.rows.argmin(1))]
