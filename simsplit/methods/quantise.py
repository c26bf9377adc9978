"""This module sends fewer bits per value: a narrower number format, or 2**bits levels.

Both are wire formats only: both sides compute in full precision.

`cast` sends fp16, bf16 or int8, and gradients pass straight through the rounding. For int8 each
sample is divided by its largest magnitude over 127, and each value is rounded up with the
probability of its fractional part, so the expectation is the value itself. LightSplit's paper
counts 32 bits per value and has no such format; it combines with any other method.

`quantise` applies to gradients too. Even levels divide the sample's own range; values are rounded
to the nearest level, or up with the probability of their fraction, so that their expectation is the
value itself. Normal levels have the least squared error for normally distributed values, and a
rotation makes any values nearly normal (`lightsplit`). With normal levels, a scale per sample makes
the inner product of the decoded and the true sample equal to the sample's squared norm, so that the
expectation over random rotations is the sample (EDEN, Vargaftik et al. 2022; with one bit, DRIVE,
2021). A packet carries the codes packed to the bit, one or two fp32 values per sample, and the
payload's shape, which packed codes do not show.
"""

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods.bits import (
    MOST_NORMAL,
    count_packed,
    dequantise_even,
    dequantise_normal,
    pack_bits,
    quantise_even,
    quantise_normal,
    unpack_bits,
)
from simsplit.methods.method import ANYTHING, CodecConfig, Method, Site, Step, Trait
from simsplit.packets import TensorForm

_FLOAT = torch.finfo(torch.float32)
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class QuantiseConfig(CodecConfig):
    """Quantisation to few bits per value."""

    kind: Literal["quantise"] = "quantise"
    modalities = ANYTHING
    works_in_sessions = True
    required_traits = frozenset({Trait.FORMAT})
    ended_traits = frozenset({Trait.FORMAT, Trait.NUMBERS})
    once = True
    reencodes = True
    rowwise: ClassVar[bool] = True
    bits: int = Field(default=8, ge=1, le=16)
    """Bits per value."""
    gradient_bits: int | None = Field(default=None, ge=1, le=16)
    """Bits per value of the gradients that are sent back; null: `bits`."""
    levels: Literal["even", "normal"] = "even"
    """Where levels lie: `even` spacing over each sample's range, or `normal` for rotated values
    (after lightsplit), with a fraction of the error at few bits (at most 6)."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """Rounding to even levels: `stochastic` is exact in expectation, `nearest` is at most half a
    level off. Normal levels always round to the nearest."""

    @model_validator(mode="after")
    def _check_normal_bits(self) -> Self:
        most = max(self.bits, self.gradient_bits or 1)
        if self.levels == "normal" and most > MOST_NORMAL:
            raise ValueError(
                f"levels: normal takes 1 to {MOST_NORMAL} bits, got {most}; use levels: even"
            )
        return self

    @property
    def coded_legs(self) -> frozenset[Leg]:
        """All legs that it acts on, since packets carry codes."""
        return frozenset(self.acts_on)

    def build(self, site: Site) -> Method:
        return Quantise(self, sends=site.sends)


class Quantise(Method):
    """The packing of values as integer codes, with numbers per sample to decode them.

    Even levels have two, the minimum and the step; normal levels have a scale.
    """

    def __init__(self, config: QuantiseConfig, *, sends: bool) -> None:
        self.normal, self.stochastic = config.levels == "normal", config.rounding == "stochastic"
        # The sender of payloads receives gradients, and vice versa.
        ways = config.bits, config.gradient_bits or config.bits
        self.packed, self.unpacked = ways if sends else reversed(ways)

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        """Return bytes of codes, fp32 numbers, and a shape."""
        rows, *shape = x.shape
        return (
            TensorForm((rows, count_packed(math.prod(shape), self.packed)), torch.uint8),
            TensorForm((rows, 1 if self.normal else 2), torch.float32),
            TensorForm((len(shape),), torch.int32),
        )

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return the packed codes (uint8), the samples' numbers (fp32), and the shape (int32)."""
        x_BD = x.float().flatten(1)
        if self.normal:
            codes_BD, numbers = quantise_normal(x_BD, self.packed)
        else:
            noise = _draw_rounding(x_BD, step, "quantise") if self.stochastic else 0.5
            codes_BD, numbers = quantise_even(x_BD, self.packed, noise)
        shape = torch.tensor(x.shape[1:], dtype=torch.int32)  # on the CPU, where it is read again
        return pack_bits(codes_BD, self.packed), numbers, shape

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Return the decoded values in the payload's shape."""
        packed, numbers, of_shape = tensors
        shape = of_shape.tolist()
        codes_BD = unpack_bits(packed, self.unpacked, math.prod(shape))
        if self.normal:
            values_BD = dequantise_normal(codes_BD, numbers, self.unpacked)
        else:
            values_BD = dequantise_even(codes_BD.float(), numbers)
        return values_BD.view(-1, *shape)


class CastConfig(CodecConfig):
    """A narrower number format on the wire."""

    kind: Literal["cast"] = "cast"
    modalities = ANYTHING
    works_in_sessions = True
    required_traits = frozenset({Trait.FORMAT})
    ended_traits = frozenset({Trait.FORMAT})
    once = True
    reencodes = True
    rowwise: ClassVar[bool] = True
    to: Literal["fp16", "bf16", "int8"] = "fp16"
    """Number format on the wire; int8 rounds stochastically and adds one fp32 scale per sample."""

    @property
    def coded_legs(self) -> frozenset[Leg]:
        """For int8 all legs that it acts on; none for fp16 and bf16, which are floats."""
        return frozenset(self.acts_on if self.to == "int8" else ())

    def build(self, site: Site) -> Method:
        return Int8() if self.to == "int8" else Cast(_DTYPES[self.to])


class Cast(Method):
    """A narrower floating-point format on the wire."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        return (x._replace(dtype=self.dtype),)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        return (x.to(self.dtype),)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        return tensors[0].float()


class Int8(Method):
    """Eight bits per value and a scale per sample, rounded without bias."""

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        """Return the same shape in int8, and fp32 scales."""
        return x._replace(dtype=torch.int8), TensorForm(x.shape[:1], torch.float32)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return the int8 values, and an fp32 scale per sample."""
        x_BD = x.float().flatten(1)
        largest_B1 = x_BD.abs().amax(1, keepdim=True)
        # Below the upper bound, 127 times the scale is finite.
        scale_B1 = (largest_B1 / 127).clamp(_FLOAT.tiny, _FLOAT.max / 128)
        rounded = (x_BD / scale_B1 + _draw_rounding(x_BD, step, "int8")).floor_().clamp_(-127, 127)
        return rounded.to(torch.int8).view(x.shape), scale_B1.squeeze(1)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        values, scale_B = tensors
        return values.float() * scale_B.view(-1, *([1] * (values.dim() - 1)))


def _draw_rounding(x_BD: Tensor, step: Step, name: str) -> Tensor:
    """Draw from 0 to 1; counted, so that no two tensors of a step share their noise."""
    count = step.memo[name] = step.memo.get(name, -1) + 1
    return step.draw_rows(torch.rand, x_BD.shape, name, count, device=x_BD.device)
