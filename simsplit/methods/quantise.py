"""Quantisation: each sample's values on 2**bits levels.

A wire format, as `cast` is, and on gradients too. Even levels lie over the sample's own range;
values are rounded up with the probability of their fraction, so the expectation is the value
itself, or to the nearest. Normal levels are for values that a rotation has made about normal, such
as what `lightsplit` sends: the nearest of the levels with the least error for these, with a scale
by which a sample keeps its length along itself (EDEN, Vargaftik et al. 2022; one bit is DRIVE,
2021). A packet carries the codes packed to the bit, one or two fp32 for each sample, and the
payload's shape, since packed codes no longer show it.
"""

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.methods.base import ANYTHING, CodecConfig, Method, Modality, Site, Step, Trait
from simsplit.methods.bits import (
    MOST_NORMAL,
    from_levels,
    from_normal_levels,
    on_levels,
    on_normal_levels,
    pack_bits,
    unpack_bits,
)
from simsplit.packets import Leg


class QuantiseConfig(CodecConfig):
    """Quantisation to few bits per value."""

    kind: Literal["quantise"] = "quantise"
    suits: ClassVar[frozenset[Modality]] = ANYTHING
    passes: ClassVar[bool] = True
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT, Trait.NUMBERS})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
    bits: int = Field(default=8, ge=1, le=16)
    """Bits per value."""
    gradient_bits: int | None = Field(default=None, ge=1, le=16)
    """Of the gradients that come back; null: as many. They bear fewer than what goes forward."""
    levels: Literal["even", "normal"] = "even"
    """normal: for what lightsplit has rotated; far less error than even ones at 1 to 3 bits."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """Of even levels. stochastic: exact in expectation. nearest: at most half a level off."""

    @model_validator(mode="after")
    def _few(self) -> Self:
        most = max(self.bits, self.gradient_bits or 1)
        if self.levels == "normal" and most > MOST_NORMAL:
            raise ValueError(
                f"levels: normal takes 1 to {MOST_NORMAL} bits, got {most}; use levels: even"
            )
        return self

    @property
    def coded(self) -> frozenset[Leg]:
        """All legs that it acts on: packets carry packed levels."""
        return frozenset(self.acts_on)

    def either_way(self, *, sends: bool) -> tuple[int, int]:
        """The bits of what a side packs and of what it unpacks: who sends gets gradients back."""
        forth, back = self.bits, self.gradient_bits or self.bits
        return (forth, back) if sends else (back, forth)

    def build(self, site: Site) -> Method:
        return (Quantise if self.levels == "even" else QuantiseNormal)(self, sends=site.sends)


class Quantise(Method):
    """Packs values as integer codes over each sample's range."""

    num_side = 2

    def __init__(self, config: QuantiseConfig, *, sends: bool) -> None:
        self.bits, self.bits_in = config.either_way(sends=sends)
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
        codes_BD = unpack_bits(packed, self.bits_in, math.prod(shape)).float()
        return from_levels(codes_BD, range_B2).view(-1, *shape)


class QuantiseNormal(Method):
    """Packs values as the nearest of levels for normal ones, with a scale for each sample."""

    num_side = 2

    def __init__(self, config: QuantiseConfig, *, sends: bool) -> None:
        self.bits, self.bits_in = config.either_way(sends=sends)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """The uint8 codes, fp32 scales, and int32 shape."""
        codes_BD, scale_B1 = on_normal_levels(x.float().flatten(1), self.bits)
        shape = torch.tensor(x.shape[1:], dtype=torch.int32, device=x.device)
        return pack_bits(codes_BD, self.bits), scale_B1, shape

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """The codes' levels times the scale."""
        packed, scale_B1, told = tensors
        shape = told.tolist()
        codes_BD = unpack_bits(packed, self.bits_in, math.prod(shape))
        return from_normal_levels(codes_BD, scale_B1, self.bits_in).view(-1, *shape)
