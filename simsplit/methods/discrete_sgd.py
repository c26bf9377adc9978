"""This module implements DiscreteSGD: clients round the gradients that they send to a few values.

It is a defence of VFL benchmarks (Fu et al., USENIX Security 2022; VFLAIR). Let sigma be the
standard deviation of all values of a client's first gradient, and W one more than the number of
bins. From then on each value is rounded to the nearest multiple of 2 sigma / floor(W / 2), so that
about W values lie within 2 sigma of zero. As in VFLAIR's code the mean is not subtracted, and the
interval never changes; clients that share a head share it. The paper limits values to 2 sigma,
which `clip` does; the code rounds larger values like the others. Packets keep their size.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.legs import Leg
from simsplit.methods.method import LabelDefenceConfig, Method, Share, Site, Step
from simsplit.needs import need_leg


class DiscreteSgdConfig(LabelDefenceConfig):
    """Rounding of the feature gradients to multiples of one step."""

    kind: Literal["discrete_sgd"] = "discrete_sgd"
    bins: int = Field(default=12, ge=1)
    """Number of intervals within two standard deviations of zero; fewer hide more. VFLAIR's
    examples have 12."""
    clip: bool = False
    """Whether larger values are limited to two standard deviations. VFLAIR's code leaves them."""
    requires = (need_leg(Leg.FEATURES_GRAD),)

    def build(self, site: Site) -> Method:
        return DiscreteSgd(self, site) if site.side == "client" else Method()


class DiscreteSgd(Method):
    """The client's half, which rounds the feature gradients that it sends."""

    def __init__(self, config: DiscreteSgdConfig, site: Site) -> None:
        self.half, self.clip = (config.bins + 1) // 2, config.clip
        # The distance between neighbouring values; 0 before the first gradient. A buffer, so that a
        # resumed run goes on with the same step.
        self.module = self.interval = nn.Module()
        self.interval.register_buffer("size", torch.zeros((), device=site.device))

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        size, values = self.interval.get_buffer("size"), grad.float().flatten()
        if not size and len(values) > 1:
            size = 2 * values.std() / self.half
            if step.training:  # what only attacks see must not set the step of training
                self.interval.get_buffer("size").copy_(size)
        if not size:  # equal values, or a single one, have no spread to divide
            return (Share(grad),)
        steps = (grad.float() / size).round()
        if self.clip:
            steps = steps.clamp(-self.half, self.half)
        return (Share((steps * size).to(grad.dtype)),)
