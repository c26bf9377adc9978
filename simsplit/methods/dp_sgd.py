"""This module implements DP-SGD at the cut: clients clip and noise the gradients that they send.

The gradient of the features also carries private information, above all labels, to the server;
noise on it hides this information. (Abadi et al., CCS 2016, clip the gradients of all weights; here
the gradients of a client's head and tail never leave it.) A sample's row is a part of the gradient
of the batch's mean loss, so it is 1 / batch size times the gradient of the sample's own loss. By
default clipping is relative to the batch's mean norm, which gives no guarantee. With
`relative: false`, each message has a guarantee, and `privacy.accounting` computes that of a run.
Smashed data is not changed; `dp_forward` noises it. `laplace` is the variant seen in practice: no
clipping, and noise in proportion to the gradient's root mean square.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods.clipping import Release, clip_rows
from simsplit.methods.method import LabelDefenceConfig, Method, Share, Site, Step
from simsplit.needs import need_leg


class DpSgdConfig(LabelDefenceConfig):
    """Clipping and noise on the gradients of features, per sample."""

    kind: Literal["dp_sgd"] = "dp_sgd"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """`gaussian`: gradients are clipped, and the noise is relative to the clipping norm. `laplace`:
    gradients are not clipped, and the noise is relative to their size."""
    multiplier: float = Field(default=0.01, ge=0)
    """Noise per value: relative to the clipping norm of a sample (gaussian), or to the values' root
    mean square (laplace). A text has thousands of values, so above 0.01 the noise dominates the
    norm; an image's features have hundreds."""
    clip: float = Field(default=1.0, gt=0)
    """The clipping norm; see `relative` for its unit."""
    relative: bool = True
    """Whether `clip` is a multiple of the batch's mean norm; if not, it is absolute."""
    report_delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta at which a run reports its epsilon; null: 1 / the number of the client's samples,
    at most 0.01."""
    accounted = True
    requires = (need_leg(Leg.FEATURES_GRAD),)

    @property
    def depends_on_batch(self) -> bool:
        return self.relative or self.noise == "laplace"

    @property
    def release(self) -> Release | str:
        if self.noise == "laplace":
            return "the noise is relative to the gradient's size, so it depends on the data"
        if self.relative:
            return "clipping is relative to the batch's mean norm, so the noise depends on the data"
        if not self.multiplier:
            return "there is no noise"
        # Replacing a sample moves its row by at most twice the clipping norm.
        return Release(Leg.FEATURES_GRAD, self.multiplier / 2)

    def build(self, site: Site) -> Method:
        return DpSgd(self) if site.side == "client" else Method()


class DpSgd(Method):
    """The client's half, which noises the feature gradients that it sends."""

    def __init__(self, config: DpSgdConfig) -> None:
        self.config = config

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        config = self.config
        rng = step.make_next_rng(self, "dp_sgd", device=grad.device)
        if config.noise == "laplace":
            # In single precision: rounded to bf16, a few draws would be near infinite.
            uniform = torch.rand(grad.shape, generator=rng, device=rng.device) - 0.5
            size = config.multiplier * grad.square().mean().sqrt()
            tail = (1 - 2 * uniform.abs()).clamp_min(1e-12).log()
            return (Share(grad - size * (uniform.sign() * tail).to(grad)),)
        clipped, limit = clip_rows(grad, config.clip, relative=config.relative)
        draws = torch.randn(grad.shape, generator=rng, device=rng.device).to(clipped)
        return (Share((clipped + config.multiplier * limit * draws).to(grad)),)
