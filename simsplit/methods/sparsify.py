"""This module implements sparsification (after Aji and Heafield, 2017): small values are not sent.

The values of a sample whose magnitude lies below its r-quantile become zero (PIDI's baseline SP).
Two choices differ from the published code of VFLAIR-LLM. First, the quantile is taken per sample
(or per token, so that texts can be generated token by token); so the sent values of a sample do not
depend on the rest of its batch. Second, zeros cost no bytes: the client sends the remaining values,
an index of ceil(log2 d) bits for each, and the payload's shape, as `topk` does. Gradients of zeroed
values would be multiplied by zero, so they do not cross either. A payload sent in full would take
as many bytes as without the method.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.methods.bits import count_bits, pack_bits, unpack_bits
from simsplit.methods.method import ANYTHING, Method, MethodConfig, Modality, Site, Step, Trait
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Leg


class SparsifyConfig(MethodConfig):
    """The largest values of each sample, a fixed share of them; all others are not sent."""

    kind: Literal["sparsify"] = "sparsify"
    sparsity: float = Field(default=0.95, ge=0, lt=1)
    """The share r of a sample's values that become zero. Published runs use 0.90 to 0.995."""
    per: Literal["sample", "token"] = "sample"
    """The unit that the share applies to: a whole sample, or each token of a text."""
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.NUMBERS})
    ended_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Texts, if the unit is a token."""
        return (*super().needs, *([Need(Given.TEXTS, "per")] if self.per == "token" else []))

    def can_run_in_sessions(self, reading: str = "") -> bool:
        """Return whether the unit is a token; a whole text's quantile needs all of its tokens."""
        return self.per == "token"

    @property
    def unreadable_legs(self) -> frozenset[Leg]:
        """The gradients of smashed data, which are sent without indices."""
        return frozenset({Leg.SMASHED_GRAD})

    def build(self, site: Site) -> Method:
        return Sparsify(self.sparsity, sends=site.sends, by_token=self.per == "token")


class Sparsify(Method):
    """One side's half: the sender gathers values and the receiver scatters them.

    For gradients, the roles are exchanged.
    """

    num_side = 2
    num_side_back = 0

    def __init__(self, sparsity: float, *, sends: bool, by_token: bool = False) -> None:
        self.sparsity, self.sends = sparsity, sends
        self.first_axis = 2 if by_token else 1
        """The first of the axes that one quantile is taken over."""

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Set values below the quantile to zero, so that they get no gradient."""
        z_BD = self._to_rows(z)
        kept_BK = z_BD.detach().abs().topk(num_kept(z_BD.shape[1], self.sparsity), dim=1).indices
        mask_BD = torch.zeros_like(z_BD).scatter_(1, kept_BK, 1.0)
        step.memo[self] = kept_BK, z.shape[1:]
        return z * mask_BD.view_as(z)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return values, indices and shape; for gradients, the values alone."""
        kept_BK, shape = step.memo[self]
        values_BK = self._to_rows(x).gather(1, kept_BK)
        if not self.sends:
            return (values_BK,)
        if not step.training:
            del step.memo[self]
        shape_tensor = torch.tensor(shape, dtype=torch.int32, device=x.device)
        return values_BK, pack_bits(kept_BK, count_bits(self._count_values(shape))), shape_tensor

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the values at their positions, and zeros elsewhere."""
        values_BK, *beside = tensors
        if beside:
            indices, shape_tensor = beside
            shape = self._read_shape(shape_tensor, values_BK)
            bits = count_bits(self._count_values(shape))
            kept_BK = unpack_bits(indices, bits, values_BK.shape[1])
            if step.training:
                step.memo[self] = kept_BK, shape
        else:
            kept_BK, shape = step.memo[self]
        dense_BD = values_BK.new_zeros(len(values_BK), self._count_values(shape))
        return dense_BD.scatter_(1, kept_BK, values_BK).view(-1, *shape)

    def _read_shape(self, shape_tensor: Tensor, values_BK: Tensor) -> torch.Size:
        """Return a payload's shape; raise ProtocolError unless it fits the number of values sent.

        The sender may be hostile, and a few bytes must not make the receiver allocate much.
        """
        shape = torch.Size(shape_tensor.flatten().tolist())
        good = len(shape) >= self.first_axis and min(shape) > 0
        if not good or values_BK.shape[1] != num_kept(self._count_values(shape), self.sparsity):
            raise ProtocolError(
                f"sparsify: {values_BK.shape[1]} values of each row for the shape {tuple(shape)}"
            )
        return shape

    def _to_rows(self, x: Tensor) -> Tensor:
        """Reshape to one row per sample or per token."""
        return x.reshape(-1, self._count_values(x.shape[1:]))

    def _count_values(self, shape: torch.Size) -> int:
        """Return the number of values of a sample or token, given a sample's shape."""
        return math.prod(shape[self.first_axis - 1 :])


def num_kept(values: int, sparsity: float) -> int:
    """Return how many of `values` values are not below their quantile; at least 1."""
    place = sparsity * (values - 1)
    # A product that is an integer up to rounding must not be rounded up to the next one.
    return values - math.ceil(place - 1e-9 * values)
