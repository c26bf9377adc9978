"""DP-SGD at the cut: the gradients that a text client sends are clipped text by text, and noised.

What is private of a batch reaches the trunk, and the server, through the gradient of the features
alone; noised there, all that the server does with it is private as well. (Abadi et al., CCS 2016,
clip the gradients of all weights; those of the client's own head and tail never leave it.) Clipping
is relative to the batch's average norm, as in `dp_forward`. `laplace` is the variant seen in
practice: noise alone, of a part of the gradient's root mean square.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Share, Site, Step
from simsplit.needs import Needs, needs_leg
from simsplit.packets import Leg


class DpSgdConfig(MethodConfig):
    """Clips and noises the feature gradients of texts."""

    kind: Literal["dp_sgd"] = "dp_sgd"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """gaussian: gradients are clipped, and noised relative to the clipping norm. laplace: not
    clipped, and noised relative to their own size."""
    multiplier: float = Field(default=0.01, ge=0)
    """Noise per value: relative to a text's clipping norm (gaussian), or to the values' root mean
    square (laplace). A text has thousands of values, so above 0.01 noise dominates the norm."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm."""
    relative: bool = True
    """Whether `clip` is relative to the batch's mean norm, or absolute."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    once: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Feature gradients that cross the cut."""
        return (*super().needs, needs_leg(Leg.FEATURES_GRAD))

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return DpSgd(self) if site.side == "client" else Method()


class DpSgd(Method):
    """Changes the feature gradients that a client sends."""

    def __init__(self, config: DpSgdConfig) -> None:
        self.config = config

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """The gradient, clipped and noised, as one message."""
        config = self.config
        count = step.memo[self] = step.memo.get(self, 0) + 1
        rng = step.rng("dp_sgd", count)
        if config.noise == "laplace":
            uniform = torch.rand(grad.shape, generator=rng).to(grad) - 0.5
            size = config.multiplier * grad.square().mean().sqrt()
            tail = (1 - 2 * uniform.abs()).clamp_min(1e-12).log()
            return (Share(grad - size * uniform.sign() * tail),)
        axes = tuple(range(1, grad.dim()))
        norms = grad.square().sum(axes, keepdim=True).sqrt()
        limit = config.clip * (norms.mean() if config.relative else 1.0)
        clipped = grad * (limit / norms.clamp_min(1e-12)).clamp(max=1.0)
        draws = torch.randn(grad.shape, generator=rng).to(grad)
        return (Share(clipped + config.multiplier * limit * draws),)
