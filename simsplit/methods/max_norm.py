"""This module implements max_norm (Li et al., ICLR 2022), which hides classes in gradient norms.

Every row g_j of a batch's gradient is scaled by 1 + s_j n_j, where n_j is standard normal and
s_j = sqrt(max |g|^2 / |g_j|^2 - 1). Then all rows have the mean square norm of the longest row, and
keep their directions up to the sign. Our only departure from the paper: a row of zeros stays zero.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.methods.method import LabelDefenceConfig, Method, Share, Site, Step, Trait
from simsplit.needs import Needs, need_leg
from simsplit.packets import Leg


class MaxNormConfig(LabelDefenceConfig):
    """Random scales on gradients, so that their norms do not reveal the class."""

    kind: Literal["max_norm"] = "max_norm"
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    requires: ClassVar[Needs] = (need_leg(Leg.FEATURES_GRAD),)

    def build(self, site: Site) -> Method:
        return MaxNorm() if site.side == "client" else Method()


class MaxNorm(Method):
    """The client's half, which scales the rows of the feature gradients that it sends."""

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """Return the scaled gradient as one message."""
        rng = step.make_next_rng(self, "max_norm")
        rows = grad.flatten(1).double()
        norms = rows.norm(dim=1, keepdim=True)
        squared = (norms.max() / norms.clamp_min(torch.finfo(torch.float64).tiny)).square()
        spread = (squared - 1).clamp_min(0).sqrt().masked_fill(norms == 0, 0.0)
        draws = torch.randn(norms.shape, generator=rng).to(rows)
        return (Share((rows * (1 + spread * draws)).to(grad.dtype).view_as(grad)),)
