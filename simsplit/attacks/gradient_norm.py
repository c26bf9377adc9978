"""The attack by the norm of gradients (Nasr et al. 2019): what crosses for members is shorter.

A trained model is nearly at rest at its members, so the gradients of their features, which a client
sends to the server, are short. The server needs no label and no loss for it.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from torch import Tensor

from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.member_attack import MemberAttack, MemberAttackConfig, MemberView
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.attacks.views import views_of
from simsplit.legs import Leg


class GradientNormConfig(MemberAttackConfig):
    """The norm of the gradient that crosses for each candidate: those of members are shorter."""

    kind: Literal["gradient_norm"] = "gradient_norm"
    threat: ClassVar[Threat] = Threat((Sees.ROWS,), (Knows.CANDIDATES,))

    reads: ClassVar[tuple[MemberView, ...]] = ("wire",)

    def build(self, known: Knowledge) -> "GradientNorm":
        return GradientNorm(self, known)


class GradientNorm(MemberAttack):
    """An attack that scores a candidate by the negative norm of its gradient."""

    def score_all(self) -> Iterator[tuple[str, Tensor]]:
        if "wire" in self.config.views:
            yield from ((view, -norms) for view, norms in measure_norms(self))


def measure_norms(attack: MemberAttack) -> Iterator[tuple[str, Tensor]]:
    """Yield the norms of the gradients that cross for the candidates, where any cross."""
    for packets in attack.reading.packets:
        if any(packet.leg is Leg.FEATURES_GRAD for packet in packets):  # none at a vanilla cut
            for view in views_of(attack.known, packets, ["gradient"])[:1]:
                yield "wire", view.rows.norm(dim=1)
            return
