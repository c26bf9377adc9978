"""The attack by a threshold on the loss (Yeom et al. 2018): members have the smaller losses."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from torch import Tensor

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.member_attack import MemberAttack, MemberAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat


class LossThresholdConfig(MemberAttackConfig):
    """The loss of each candidate under the trained model: members have the smaller ones."""

    kind: Literal["loss_threshold"] = "loss_threshold"
    threat: ClassVar[Threat] = Threat((Sees.TRAINED,), (Knows.CANDIDATES,))

    def build(self, known: Knowledge) -> "LossThreshold":
        return LossThreshold(self, known)


class LossThreshold(MemberAttack):
    """An attack that scores a candidate by its negative loss."""

    def score_all(self) -> Iterator[tuple[str, Tensor]]:
        for view, losses in self.list_losses():
            yield view, -losses.loss
