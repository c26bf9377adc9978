"""A hole in unmixing, ours: the gradients of MixGuard's messages give its weights away.

What is unmixed is a weighted sum of messages, so the gradient of message i is w_i times one and the
same tensor. The m gradients are a matrix of rank one but for noise; its first left singular vector
is w up to a factor, and sum_i w_i S_i is, up to that factor, what the private text alone would have
been sent as. An inverter then reads it, levelled, as if there were no defence; of the factor's
signs the one that reads surer is taken. Where each text has secrets of its own, it has weights of
its own.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.inverters import InverterConfig
from simsplit.attacks.inverting import Inverting
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import (
    Read,
    SeenBatch,
    count_messages,
    has_shared_secrets,
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

    config: GradientRatioConfig

    @property
    def messages(self) -> int:
        """As the config says, or the method."""
        return self.config.messages or count_messages(self.known)

    def recover(self, seen: SeenBatch) -> Read:
        """One guess per text, from its unmixed messages."""
        assert seen.gradient is not None, "what the config asks for"
        sent_MBLD = split_messages(self.known.smashed(seen.smashed), self.messages)
        grads_MBLD = split_messages(payload(self.known, seen.gradient), self.messages)
        if has_shared_secrets(self.known):
            weights_MB = weights_from(grads_MBLD.flatten(1)[None]).T
        else:
            weights_MB = weights_from(grads_MBLD.transpose(0, 1).flatten(2)).T
        unmixed = (weights_MB[:, :, None, None] * sent_MBLD).sum(0)
        return self.read(unmixed[None], both=True)


def weights_from(grads_GMN: Tensor) -> Tensor:
    """The messages' weights of each group, up to a factor of its own: G x M."""
    grads = grads_GMN.double()
    weights_GM: Tensor = torch.linalg.eigh(grads @ grads.mT).eigenvectors[..., -1]
    return weights_GM.to(grads_GMN)
