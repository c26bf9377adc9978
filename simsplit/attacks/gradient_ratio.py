"""A hole in unmixing, ours: the gradients of MixGuard's messages give its weights away.

What is unmixed is a weighted sum of messages, so the gradient of message i is w_i times one and the
same tensor. The m gradients are a matrix of rank one but for noise; its first left singular vector
is w up to a factor, and sum_i w_i S_i is, up to that factor, what the private text alone would have
been sent as. An inverter then reads it as if there were no defence. The factor's size is the one
that gives the rows the size of the pretrained head's; of its signs, the one that reads surer.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.base import Knowledge
from simsplit.attacks.texts import (
    InverterConfig,
    Inverting,
    Seen,
    messages_of,
    payload,
    split_messages,
)


class GradientRatioConfig(InverterConfig):
    """Infers mixing weights from the ratios of gradient messages, unmixes, and reads the result."""

    kind: Literal["gradient_ratio"] = "gradient_ratio"
    messages: int | None = Field(default=None, ge=1)
    """How many mixtures a batch is sent as; null: as many as the method sends."""
    gradients: ClassVar[bool] = True

    def build(self, known: Knowledge) -> "GradientRatio":
        return GradientRatio(self, known)


class GradientRatio(Inverting):
    """Weights by singular vectors, then the inverter."""

    def __init__(self, config: GradientRatioConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.messages = config.messages or messages_of(known)

    def recover(self, seen: Seen) -> Tensor:
        """One guess per text, from its unmixed messages."""
        assert seen.gradient is not None, "what the config asks for"
        sent_MBLD = split_messages(self.known.smashed(seen.smashed), self.messages)
        grads_MBLD = split_messages(payload(self.known, seen.gradient), self.messages)
        weights_M = weights_from(grads_MBLD)
        unmixed = torch.tensordot(weights_M, sent_MBLD, 1)
        unmixed = unmixed * (self.size / unmixed.square().mean().sqrt())
        return self.read(max((unmixed, -unmixed), key=self._surety))

    def _surety(self, hidden_BLD: Tensor) -> float:
        with torch.no_grad():
            logits: Tensor = self.inverter.eval()(hidden_BLD / self.size)
        return logits.log_softmax(-1).amax(-1).mean().item()


def weights_from(grads_MBLD: Tensor) -> Tensor:
    """The messages' weights, up to a common factor."""
    gram_MM = grads_MBLD.flatten(1).double() @ grads_MBLD.flatten(1).double().T
    weights_M: Tensor = torch.linalg.eigh(gram_MM).eigenvectors[:, -1]
    return weights_M.to(grads_MBLD)
