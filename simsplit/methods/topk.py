"""Send only the k values of largest magnitude and where they stand; or at random some others.

RandTopk (Zheng et al., IJCAI 2023) draws the k kept ones without replacement, a probability mass of
1 - alpha spread over the k largest and alpha over all others, so that in training no value is
silent for ever; an evaluation keeps the k largest. Gradients cross for the kept values alone,
without indices: who sent them knows where they stood.

An index takes ceil(log2 d) bits on the wire, so at equal bytes k is less than d / ratio (at d =
4096 a value costs 1.375 as much); `match: values` counts values as some papers do.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.errors import ScenarioError
from simsplit.methods.base import BACK, CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.methods.bits import count_bits, pack_bits, unpack_bits
from simsplit.packets import Leg


class _SparseConfig(CodecConfig):
    ratio: float = Field(default=8, ge=1)
    """Compression ratio."""
    match: Literal["bits", "values"] = "bits"
    """Whether `ratio` counts bits, indices included, or values, indices not counted."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.NUMBERS})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True

    @property
    def unreadable(self) -> frozenset[Leg]:
        """Gradients, which are sent without their indices."""
        return frozenset(BACK[leg] for leg in self.acts_on)

    def kept(self, d: int) -> int:
        """k: how many of d values are sent."""
        share = 32 / (32 + count_bits(d)) if self.match == "bits" else 1.0
        return int(d / self.ratio * share)

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The same shape: values that are not sent arrive as zeros."""
        d = int(torch.Size(shape).numel())
        if not self.kept(d):
            raise ScenarioError(f"{where}.ratio", f"leaves none of {d} values, got {self.ratio:g}")
        return shape


class TopkConfig(_SparseConfig):
    """Sends each sample's values of largest magnitude, and their indices."""

    kind: Literal["topk"] = "topk"

    def build(self, site: Site) -> Method:
        return Topk(site, self.kept(site.size), 0.0)


class RandTopkConfig(_SparseConfig):
    """Topk that sometimes keeps smaller values in training (RandTopk)."""

    kind: Literal["randtopk"] = "randtopk"
    alpha: float = Field(default=0.2, ge=0, lt=1)
    """Probability that falls on values that are not among the largest."""

    def build(self, site: Site) -> Method:
        return Topk(site, self.kept(site.size), self.alpha)


class Topk(Method):
    """Sender: masks and gathers values; receiver: scatters them; gradients in reverse."""

    num_side = 1
    num_side_back = 0

    def __init__(self, site: Site, k: int, alpha: float) -> None:
        self.sends, self.shape = site.sends, site.shape
        self.d, self.k, self.alpha = site.size, k, alpha

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Set values that will not be sent to zero, so that they get no gradient."""
        kept_BK = self._chosen(z.detach().flatten(1), step)
        mask = torch.zeros_like(z.flatten(1)).scatter_(1, kept_BK, 1.0)
        step.memo[self] = kept_BK
        return z * mask.view_as(z)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Values and indices; of gradients only the values."""
        kept_BK = step.memo[self]
        values_BK = x.flatten(1).gather(1, kept_BK)
        if not self.sends:
            return (values_BK,)
        if not step.training:
            del step.memo[self]
        return values_BK, pack_bits(kept_BK, count_bits(self.d))

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Values at their positions, zeros elsewhere."""
        values_BK, *indices = tensors
        if indices:
            kept_BK = unpack_bits(indices[0], count_bits(self.d), self.k)
            if step.training:
                step.memo[self] = kept_BK
        else:
            kept_BK = step.memo[self]
        dense_BD = values_BK.new_zeros(len(values_BK), self.d)
        return dense_BD.scatter_(1, kept_BK, values_BK).view(-1, *self.shape)

    def _chosen(self, z_BD: Tensor, step: Step) -> Tensor:
        largest_BK = z_BD.abs().topk(self.k, dim=1).indices
        if not (self.alpha and step.training and self.k < self.d):
            return largest_BK
        # the k highest of log-weights with Gumbel noise are a draw without replacement
        noise_BD = torch.rand(z_BD.shape, generator=step.rng("randtopk")).clamp_min_(1e-30)
        key_BD = -torch.log(-torch.log(noise_BD)).to(z_BD.device)
        odds = (1 - self.alpha) / self.alpha * (self.d - self.k) / self.k
        bonus = torch.tensor(odds).log().to(key_BD)
        key_BD.scatter_add_(1, largest_BK, bonus.expand_as(largest_BK))
        return key_BD.topk(self.k, dim=1).indices
