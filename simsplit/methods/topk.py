"""This module sends only values of large magnitude, and their indices: top-k and sparsification.

Top-k sends the k largest. RandTopk (Zheng et al., IJCAI 2023) draws k values without replacement:
the k largest together have the probability 1 - alpha, and all others alpha. So in training every
value is sent at times; evaluation sends the k largest. Gradients cross for the sent values only,
without indices, since their receiver remembers the positions.

An index takes ceil(log2 d) bits on the wire, so at equal bytes k is less than d / ratio (at
d = 4096 a value costs 1.375 times as much). `match: values` counts values only, as some papers do.

Sparsification (after Aji and Heafield, 2017) does not send small values: those of a sample whose
magnitude lies below its r-quantile become zero (PIDI's baseline SP). Two choices differ from the
published code of VFLAIR-LLM. First, the quantile is taken per sample (or per token, so that texts
can be generated token by token); so the sent values of a sample do not depend on the rest of its
batch. Second, zeros cost no bytes: the client sends the remaining values, an index of ceil(log2 d)
bits for each, and the payload's shape. Gradients of zeroed values would be multiplied by zero, so
they do not cross either. A payload sent in full would take as many bytes as without the method.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.errors import ProtocolError, ScenarioError
from simsplit.legs import Leg
from simsplit.methods.bits import count_bits, count_packed, pack_bits, unpack_bits
from simsplit.methods.method import (
    ANYTHING,
    BACK,
    CodecConfig,
    Method,
    MethodConfig,
    Shape,
    Site,
    Step,
    Trait,
)
from simsplit.needs import Given, Need, Needs
from simsplit.packets import TensorForm


class _SparseConfig(CodecConfig):
    ratio: float = Field(default=8, ge=1)
    """Compression ratio, counted as `match` says."""
    match: Literal["bits", "values"] = "bits"
    """Whether `ratio` counts `bits`, including those of indices, or `values` only."""
    required_traits = frozenset({Trait.VALUES, Trait.NUMBERS})
    ended_traits = frozenset({Trait.VALUES})
    once = True
    reencodes = True

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
    rowwise: ClassVar[bool] = True

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

    def __init__(self, site: Site, k: int, alpha: float) -> None:
        self.sends, self.shape = site.sends, site.shape
        self.d, self.k, self.alpha = site.size, k, alpha

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        """Return k values of each row, and bytes of indices on the forward legs."""
        values = x._replace(shape=(x.shape[0], self.k))
        return (values, _index_form(values, self.d)) if leg in BACK else (values,)

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
        rng = step.make_rng("randtopk", device=z_BD.device)
        noise_BD = torch.rand(z_BD.shape, generator=rng, device=rng.device).clamp_min_(1e-30)
        key_BD = -torch.log(-torch.log(noise_BD)).to(z_BD.device)
        odds = (1 - self.alpha) / self.alpha * (self.d - self.k) / self.k
        bonus = torch.tensor(odds).log().to(key_BD)
        key_BD.scatter_add_(1, largest_BK, bonus.expand_as(largest_BK))
        return key_BD.topk(self.k, dim=1).indices


class SparsifyConfig(MethodConfig):
    """The largest values of each sample, a fixed share of them; all others are not sent."""

    kind: Literal["sparsify"] = "sparsify"
    sparsity: float = Field(default=0.95, ge=0, lt=1)
    """The share r of a sample's values that become zero. Published runs use 0.90 to 0.995."""
    per: Literal["sample", "token"] = "sample"
    """The unit that the share applies to: a whole sample, or each token of a text."""
    modalities = ANYTHING
    required_traits = frozenset({Trait.VALUES, Trait.NUMBERS})
    ended_traits = frozenset({Trait.VALUES})
    once = True
    reencodes = True
    # Gradients are sent without indices.
    unreadable_legs: ClassVar[frozenset[Leg]] = frozenset({Leg.SMASHED_GRAD})

    @property
    def needs(self) -> Needs:
        return (*super().needs, *([Need(Given.TEXTS, "per")] if self.per == "token" else []))

    def can_run_in_sessions(self, reading: str = "") -> bool:
        """Return whether the unit is a token; a whole text's quantile needs all of its tokens."""
        return self.per == "token"

    def build(self, site: Site) -> Method:
        return Sparsify(self.sparsity, sends=site.sends, by_token=self.per == "token")


class Sparsify(Method):
    """One side's half: the sender gathers values and the receiver scatters them.

    For gradients, the roles are exchanged.
    """

    def __init__(self, sparsity: float, *, sends: bool, by_token: bool = False) -> None:
        self.sparsity, self.sends = sparsity, sends
        self.first_axis = 2 if by_token else 1
        """The first of the axes that one quantile is taken over."""

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        """Return values of each row; on the forward legs bytes of indices and a shape too."""
        each = self._count_values(x.shape[1:])
        rows = math.prod(x.shape) // each
        values = x._replace(shape=(rows, num_kept(each, self.sparsity)))
        if leg not in BACK:
            return (values,)
        shape = TensorForm((len(x.shape) - 1,), torch.int32)
        return values, _index_form(values, each), shape

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
        shape_tensor = torch.tensor(shape, dtype=torch.int32)  # on the CPU, where it is read
        return values_BK, pack_bits(kept_BK, count_bits(self._count_values(shape))), shape_tensor

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
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

    def _count_values(self, shape: Sequence[int]) -> int:
        """Return the number of values of a sample or token, given a sample's shape."""
        return math.prod(shape[self.first_axis - 1 :])


def _index_form(values: TensorForm, places: int) -> TensorForm:
    """Return the form of the packed indices of some values, each of which has so many places."""
    rows, count = values.shape
    return TensorForm((rows, count_packed(count, count_bits(places))), torch.uint8)


def num_kept(values: int, sparsity: float) -> int:
    """Return how many of `values` values are not below their quantile; at least 1."""
    place = sparsity * (values - 1)
    # A product that is an integer up to rounding must not be rounded up to the next one.
    return values - math.ceil(place - 1e-9 * values)
