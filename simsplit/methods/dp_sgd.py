"""DP-SGD at the cut: the gradients that a client sends are clipped sample by sample, and noised.

What is private of a batch reaches the trunk, and the server, through the gradient of the features
too; noised there, the labels in it are hidden. (Abadi et al., CCS 2016, clip the gradients of all
weights; those of the client's own head and tail never leave it.) A sample's row is a part of the
gradient of the batch's mean loss, so it is 1 / batch size of the gradient of its own. Clipping is
relative to the batch's average norm unless told otherwise, and then there is no guarantee; with
`relative: false` one sending has one, and `running.accounting` says what a run has. Smashed data
cross as they are: `dp_forward` is for those. `laplace` is the variant seen in practice: noise
alone, of a part of the gradient's root mean square.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import LabelDefenceConfig, Method, Share, Site, Step
from simsplit.methods.clipping import Release, clip_rows
from simsplit.needs import Needs, needs_leg
from simsplit.packets import Leg


class DpSgdConfig(LabelDefenceConfig):
    """Clips and noises the gradients of features, sample by sample."""

    kind: Literal["dp_sgd"] = "dp_sgd"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """gaussian: gradients are clipped, and noised relative to the clipping norm. laplace: not
    clipped, and noised relative to their own size."""
    multiplier: float = Field(default=0.01, ge=0)
    """Noise per value: relative to a sample's clipping norm (gaussian), or to the values' root
    mean square (laplace). A text has thousands of values, so above 0.01 noise dominates the norm;
    features of an image have hundreds."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm."""
    relative: bool = True
    """Whether `clip` is relative to the batch's mean norm, or absolute."""
    report_delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta at which a run reports its epsilon; null: 1 / the client's samples, 0.01 at
    most."""
    requires: ClassVar[Needs] = (needs_leg(Leg.FEATURES_GRAD),)

    @property
    def release(self) -> Release | str:
        """Gaussian noise on what is clipped absolutely; rows move by twice the norm at most."""
        if self.noise == "laplace":
            return "the noise is relative to the gradient's size, so it depends on the data"
        if self.relative:
            return "clipping is relative to the batch's mean norm, so the noise depends on the data"
        if not self.multiplier:
            return "there is no noise"
        return Release(Leg.FEATURES_GRAD, self.multiplier / 2)

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
        rng = step.next_rng(self, "dp_sgd")
        if config.noise == "laplace":
            uniform = torch.rand(grad.shape, generator=rng).to(grad) - 0.5
            size = config.multiplier * grad.square().mean().sqrt()
            tail = (1 - 2 * uniform.abs()).clamp_min(1e-12).log()
            return (Share(grad - size * uniform.sign() * tail),)
        short, limit = clip_rows(grad, config.clip, relative=config.relative)
        draws = torch.randn(grad.shape, generator=rng).to(short)
        return (Share((short + config.multiplier * limit * draws).to(grad)),)
