"""This module sends only the k values of largest magnitude, and their indices.

RandTopk (Zheng et al., IJCAI 2023) draws the k values without replacement: the k largest together
have the probability 1 - alpha, and all others alpha. So in training every value is sent at times;
evaluation sends the k largest. Gradients cross for the sent values only, without indices, since
their receiver remembers the positions.

An index takes ceil(log2 d) bits on the wire, so at equal bytes k is less than d / ratio (at
d = 4096 a value costs 1.375 times as much). `match: values` counts values only, as some papers do.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.errors import ScenarioError
from simsplit.methods.bits import count_bits, pack_bits, unpack_bits
from simsplit.methods.method import BACK, CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.packets import Leg


class _SparseConfig(CodecConfig):
    ratio: float = Field(default=8, ge=1)
    """Compression ratio, counted as `match` says."""
    match: Literal["bits", "values"] = "bits"
    """Whether `ratio` counts `bits`, including those of indices, or `values` only."""
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.NUMBERS})
    ended_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True

    @property
    def unreadable_legs(self) -> frozenset[Leg]:
        """The gradient legs, which carry no indices."""
        return frozenset(BACK[leg] for leg in self.acts_on)

    def compute_k(self, d: int) -> int:
        """Return how many of d values are sent."""
        share = 32 / (32 + count_bits(d)) if self.match == "bits" else 1.0
        return int(d / self.ratio * share)

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return the shape unchanged; raise ScenarioError if no value would be sent.

        Values that are not sent arrive as zeros.
        """
        d = int(torch.Size(shape).numel())
        if not self.compute_k(d):
            raise ScenarioError(
                f"{where}.ratio",
                f"must leave at least one of the cut's {d} values, got {self.ratio:g}",
            )
        return shape


class TopkConfig(_SparseConfig):
    """The values of largest magnitude of each sample, and their indices."""

    kind: Literal["topk"] = "topk"

    def build(self, site: Site) -> Method:
        return Topk(site, self.compute_k(site.size), 0.0)


class RandTopkConfig(_SparseConfig):
    """Topk that sometimes sends smaller values in training (RandTopk)."""

    kind: Literal["randtopk"] = "randtopk"
    alpha: float = Field(default=0.2, ge=0, lt=1)
    """Probability of the values that are not among the k largest, all together; 0: topk."""

    def build(self, site: Site) -> Method:
        return Topk(site, self.compute_k(site.size), self.alpha)


class Topk(Method):
    """One side's half: the sender gathers values and the receiver scatters them.

    For gradients, the roles are exchanged.
    """

    num_side = 1
    num_side_back = 0

    def __init__(self, site: Site, k: int, alpha: float) -> None:
        self.sends, self.shape = site.sends, site.shape
        self.d, self.k, self.alpha = site.size, k, alpha

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Set values that will not be sent to zero, so that they get no gradient."""
        kept_BK = self._choose(z.detach().flatten(1), step)
        mask = torch.zeros_like(z.flatten(1)).scatter_(1, kept_BK, 1.0)
        step.memo[self] = kept_BK
        return z * mask.view_as(z)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return values and indices; for gradients, the values alone."""
        kept_BK = step.memo[self]
        values_BK = x.flatten(1).gather(1, kept_BK)
        if not self.sends:
            return (values_BK,)
        if not step.training:
            del step.memo[self]
        return values_BK, pack_bits(kept_BK, count_bits(self.d))

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the values at their positions, and zeros elsewhere."""
        values_BK, *indices = tensors
        if indices:
            kept_BK = unpack_bits(indices[0], count_bits(self.d), self.k)
            if step.training:
                step.memo[self] = kept_BK
        else:
            kept_BK = step.memo[self]
        dense_BD = values_BK.new_zeros(len(values_BK), self.d)
        return dense_BD.scatter_(1, kept_BK, values_BK).view(-1, *self.shape)

    def _choose(self, z_BD: Tensor, step: Step) -> Tensor:
        """Return the indices of the values to send."""
        largest_BK = z_BD.abs().topk(self.k, dim=1).indices
        if not (self.alpha and step.training and self.k < self.d):
            return largest_BK
        # Gumbel noise on log weights: the k highest sums are a draw without replacement.
        noise_BD = torch.rand(z_BD.shape, generator=step.make_rng("randtopk")).clamp_min_(1e-30)
        key_BD = -torch.log(-torch.log(noise_BD)).to(z_BD.device)
        odds = (1 - self.alpha) / self.alpha * (self.d - self.k) / self.k
        bonus = torch.tensor(odds).log().to(key_BD)
        key_BD.scatter_add_(1, largest_BK, bonus.expand_as(largest_BK))
        return key_BD.topk(self.k, dim=1).indices
