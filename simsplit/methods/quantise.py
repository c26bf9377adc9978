"""Quantisation: each sample's values on 2**bits levels.

A wire format, as `cast` is, and on gradients too. Even levels lie over the sample's own range;
values are rounded up with the probability of their fraction, so the expectation is the value
itself, or to the nearest. Normal levels have the least squared error for normally distributed
values, which a rotation makes of any (`lightsplit`); a scale per sample makes the inner product of
what is read with the sample the sample's squared norm, so that over random rotations the
expectation is the sample (EDEN, Vargaftik et al. 2022; with one bit DRIVE, 2021). A packet carries
the codes packed to the bit, one or two fp32 for each sample, and the payload's shape, since packed
codes no longer show it.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.methods.base import ANYTHING, CodecConfig, Method, Modality, Site, Step, Trait
from simsplit.methods.bits import (
    MOST_NORMAL,
    dequantise_normal,
    from_levels,
    on_levels,
    pack_bits,
    quantise_normal,
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
    """Bits per value of the gradients that come back; null: as many as forward."""
    levels: Literal["even", "normal"] = "even"
    """normal: for rotated values (lightsplit before it); a fraction of the error at few bits."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """Even levels: stochastic is exact in expectation, nearest at most half a level off. Normal
    levels have none: values go to the nearest."""

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

    def build(self, site: Site) -> Method:
        """One side's half; who sends the payload gets gradients back."""
        ways = self.bits, self.gradient_bits or self.bits
        packed, unpacked = ways if site.sends else reversed(ways)
        if self.levels == "normal":
            return NormalLevels(packed, unpacked)
        return EvenLevels(packed, unpacked, stochastic=self.rounding == "stochastic")


class _Quantise(Method, ABC):
    """Packs values as integer codes, with numbers for each sample that say what codes stand for."""

    num_side = 2

    def __init__(self, packed: int, unpacked: int) -> None:
        self.packed, self.unpacked = packed, unpacked

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """The uint8 codes, the samples' fp32 numbers, and int32 shape."""
        codes_BD, told = self._coded(x.float().flatten(1), step)
        shape = torch.tensor(x.shape[1:], dtype=torch.int32, device=x.device)
        return pack_bits(codes_BD, self.packed), told, shape

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """What the codes stand for, in the payload's shape."""
        packed, told, of_shape = tensors
        shape = of_shape.tolist()
        codes_BD = unpack_bits(packed, self.unpacked, math.prod(shape))
        return self._meant(codes_BD, told).view(-1, *shape)

    @abstractmethod
    def _coded(self, x_BD: Tensor, step: Step) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _meant(self, codes_BD: Tensor, told: Tensor) -> Tensor: ...


class EvenLevels(_Quantise):
    """Evenly spaced levels over each sample's range: its minimum, and the step between levels."""

    def __init__(self, packed: int, unpacked: int, *, stochastic: bool) -> None:
        super().__init__(packed, unpacked)
        self.stochastic = stochastic

    def _coded(self, x_BD: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        noise: Tensor | float = 0.5
        if self.stochastic:
            step.memo["quantise"] = step.memo.get("quantise", -1) + 1  # payload and gradient differ
            rng = step.rng("quantise", step.memo["quantise"])
            noise = torch.rand(x_BD.shape, generator=rng).to(x_BD.device)
        return on_levels(x_BD, self.packed, noise)

    def _meant(self, codes_BD: Tensor, told: Tensor) -> Tensor:
        return from_levels(codes_BD.float(), told)


class NormalLevels(_Quantise):
    """Levels for normally distributed values, times a scale for each sample."""

    def _coded(self, x_BD: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        return quantise_normal(x_BD, self.packed)

    def _meant(self, codes_BD: Tensor, told: Tensor) -> Tensor:
        return dequantise_normal(codes_BD, told, self.unpacked)
