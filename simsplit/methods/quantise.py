"""Uniform quantisation: each sample's values on 2**bits evenly spaced levels over its own range.

A wire format, as `cast` is, and on gradients too. Values are rounded up with the probability of
their fraction, so the expectation is the value itself, or to the nearest. A packet carries the
codes packed to the bit, two fp32 for each sample's range, and the payload's shape, since packed
codes no longer show it.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import ANYTHING, CodecConfig, Method, Modality, Site, Step, Trait
from simsplit.methods.bits import from_levels, on_levels, pack_bits, unpack_bits
from simsplit.packets import Leg


class QuantiseConfig(CodecConfig):
    """Uniform quantisation to few bits per value."""

    kind: Literal["quantise"] = "quantise"
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    passes: ClassVar[bool] = True
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT, Trait.NUMBERS})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
    bits: int = Field(default=8, ge=1, le=16)
    """Bits per value."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """stochastic: exact in expectation. nearest: at most half a level off."""

    @property
    def coded(self) -> frozenset[Leg]:
        """All legs that it acts on: packets carry packed levels."""
        return frozenset(self.acts_on)

    def build(self, site: Site) -> Method:
        return Quantise(self)


class Quantise(Method):
    """Packs values as integer codes over each sample's range."""

    num_side = 2

    def __init__(self, config: QuantiseConfig) -> None:
        self.bits = config.bits
        self.stochastic = config.rounding == "stochastic"

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """The uint8 codes, fp32 minimum and step, and int32 shape."""
        x_BD = x.float().flatten(1)
        noise: Tensor | float = 0.5
        if self.stochastic:
            step.memo["quantise"] = step.memo.get("quantise", -1) + 1  # payload and gradient differ
            rng = step.rng("quantise", step.memo["quantise"])
            noise = torch.rand(x_BD.shape, generator=rng).to(x.device)
        codes_BD, range_B2 = on_levels(x_BD, self.bits, noise)
        shape = torch.tensor(x.shape[1:], dtype=torch.int32, device=x.device)
        return pack_bits(codes_BD, self.bits), range_B2, shape

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Codes times step, plus the minimum."""
        packed, range_B2, told = tensors
        shape = told.tolist()
        codes_BD = unpack_bits(packed, self.bits, math.prod(shape)).float()
        return from_levels(codes_BD, range_B2).view(-1, *shape)
