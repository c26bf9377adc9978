"""max_norm (Li et al., ICLR 2022): the norms of gradients tell no class.

Every row g_j of a batch's gradient is scaled by 1 + s_j n_j, where n_j is standard normal and s_j =
sqrt(max |g|^2 / |g_j|^2 - 1): in the mean square all rows are as long as the longest. Directions
stay. As published, except that a row of zeros stays one.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.methods.base import LabelDefenceConfig, Method, Share, Site, Step, Trait
from simsplit.needs import Needs, needs_leg
from simsplit.packets import Leg


class MaxNormConfig(LabelDefenceConfig):
    """Scales gradients at random, so that their norms tell no class."""

    kind: Literal["max_norm"] = "max_norm"
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    requires: ClassVar[Needs] = (needs_leg(Leg.FEATURES_GRAD),)

    def build(self, site: Site) -> Method:
        """The noise on the client; nothing on the server."""
        return MaxNorm() if site.side == "client" else Method()


class MaxNorm(Method):
    """Scales the rows of the feature gradients that a client sends."""

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """The scaled gradient, as one message."""
        rng = step.next_rng(self, "max_norm")
        rows = grad.flatten(1).double()
        norms = rows.norm(dim=1, keepdim=True)
        squared = (norms.max() / norms.clamp_min(torch.finfo(torch.float64).tiny)).square()
        spread = (squared - 1).clamp_min(0).sqrt().masked_fill(norms == 0, 0.0)
        draws = torch.randn(norms.shape, generator=rng).to(rows)
        return (Share((rows * (1 + spread * draws)).to(grad.dtype).view_as(grad)),)
