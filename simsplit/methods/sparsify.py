"""Sparsification (after Aji and Heafield, 2017): small values are not sent.

Of a sample's values those whose magnitude lies below its r-quantile become zero (PIDI's baseline
SP). As the published code of VFLAIR-LLM has it, but for two choices of ours. The quantile is of a
sample (or of a token, with which texts can be written token by token), so that what is sent of one
does not depend on the others in its batch. And zeros are not
paid for: what crosses are the values that are left, an index of ceil(log2 d) bits for each, and the
payload's shape, as `topk` sends them; gradients of the others would be multiplied by zero, and do
not cross either. Sent in full the payload would take as many bytes as without the method.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.methods.bits import count_bits, pack_bits, unpack_bits
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Leg


class SparsifyConfig(MethodConfig):
    """Sends only the values of largest magnitude, a fixed share of each sample's."""

    kind: Literal["sparsify"] = "sparsify"
    sparsity: float = Field(default=0.95, ge=0, lt=1)
    """r: the share of a sample's values that become zero; published runs use 0.90 to 0.995."""
    per: Literal["sample", "token"] = "sample"
    """Whose values the quantile is of: a whole sample's, or those of each token of a text."""
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.NUMBERS})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Texts, if tokens are what is thinned out."""
        return (*super().needs, *([Need(Given.TEXTS, "per")] if self.per == "token" else []))

    def in_sessions(self, reading: str = "") -> bool:
        """Only token by token: a quantile of a text is known when all of it is there."""
        del reading
        return self.per == "token"

    @property
    def unreadable(self) -> frozenset[Leg]:
        """Gradients, which are sent without their indices."""
        return frozenset({Leg.SMASHED_GRAD})

    def build(self, site: Site) -> Method:
        """The same on both sides: who sends gathers, who receives scatters."""
        return Sparsify(self.sparsity, sends=site.sends, by_token=self.per == "token")


class Sparsify(Method):
    """Sender: masks and gathers values; receiver: scatters them; gradients in reverse."""

    num_side = 2
    num_side_back = 0

    def __init__(self, sparsity: float, *, sends: bool, by_token: bool = False) -> None:
        self.sparsity, self.sends = sparsity, sends
        self.begins = 2 if by_token else 1
        """The first of the axes that belong to one quantile."""

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Set values below the quantile to zero, so that they get no gradient."""
        z_BD = self._rows(z)
        kept_BK = z_BD.detach().abs().topk(num_kept(z_BD.shape[1], self.sparsity), dim=1).indices
        mask_BD = torch.zeros_like(z_BD).scatter_(1, kept_BK, 1.0)
        step.memo[self] = kept_BK, z.shape[1:]
        return z * mask_BD.view_as(z)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Values, indices and shape; of gradients only the values."""
        kept_BK, shape = step.memo[self]
        values_BK = self._rows(x).gather(1, kept_BK)
        if not self.sends:
            return (values_BK,)
        if not step.training:
            del step.memo[self]
        told = torch.tensor(shape, dtype=torch.int32, device=x.device)
        return values_BK, pack_bits(kept_BK, count_bits(self._size(shape))), told

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Values at their positions, zeros elsewhere."""
        values_BK, *beside = tensors
        if beside:
            indices, told = beside
            shape = torch.Size(told.tolist())
            kept_BK = unpack_bits(indices, count_bits(self._size(shape)), values_BK.shape[1])
            if step.training:
                step.memo[self] = kept_BK, shape
        else:
            kept_BK, shape = step.memo[self]
        dense_BD = values_BK.new_zeros(len(values_BK), self._size(shape))
        return dense_BD.scatter_(1, kept_BK, values_BK).view(-1, *shape)

    def _rows(self, x: Tensor) -> Tensor:
        """A row for each sample, or for each token."""
        return x.reshape(-1, self._size(x.shape[1:]))

    def _size(self, shape: torch.Size) -> int:
        """Values of a sample, or of a token."""
        return math.prod(shape[self.begins - 1 :])


def num_kept(values: int, sparsity: float) -> int:
    """How many of so many values are not below their quantile, at least one."""
    place = sparsity * (values - 1)
    return values - math.ceil(place - 1e-9 * values)
