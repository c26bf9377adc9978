"""An attack on unmixing, ours: the gradients of MixGuard's messages reveal the weights.

The client unmixes a weighted sum of messages, so the gradient of message i is w_i times one common
tensor. Without noise, the m gradients form a matrix of rank one. Its first left singular vector is
w up to a factor, and sum_i w_i S_i is, up to that factor, the payload of the private text alone. An
inverter then reads it, levelled, as if there were no defence, with the sign that reads surer. If
each text has its own secrets, each has its own weights.
"""

from typing import ClassVar, Literal

from pydantic import Field

from simsplit.attacks.gradient_view import unmix
from simsplit.attacks.inverters import InverterConfig
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import Read, SeenBatch, count_messages, split_messages
from simsplit.attacks.threat import Knows, Sees, Threat


class GradientRatioConfig(InverterConfig):
    """Unmixing with weights inferred from the ratios of gradient messages, then an inverter."""

    kind: Literal["gradient_ratio"] = "gradient_ratio"
    threat: ClassVar[Threat] = Threat(
        (Sees.SMASHED, Sees.GRADIENTS),
        (Knows.HEAD, Knows.PUBLIC),
        limits="gradients that are one tensor times weights",
    )
    messages: int | None = Field(default=None, ge=1)
    """Number of messages for each text; null: the method's number."""

    def build(self, known: Knowledge) -> "GradientRatio":
        return GradientRatio(self, known)


class GradientRatio(Inverting):
    """An attack that infers the weights, unmixes, and reads the result with an inverter."""

    config: GradientRatioConfig

    @property
    def messages(self) -> int:
        return self.config.messages or count_messages(self.known)

    def recover(self, seen: SeenBatch) -> Read:
        sent_MBLD = split_messages(self.known.lift_smashed(seen.smashed), self.messages)
        # A singular vector has no sign, whatever the method does.
        return self.read(unmix(self.known, seen, sent_MBLD)[None], both=True)
