"""Fewer bits per value on the wire: fp16, bf16, or int8 with a scale and stochastic rounding.

This is a wire format only: both sides compute in full precision, and gradients pass straight
through the rounding. For int8 each sample is divided by its largest magnitude over 127, and each
value is rounded up with the probability of its fractional part, so the expectation is the value
itself. LightSplit's paper counts 32 bits per value and has no such format; it combines with any
other method.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.methods.method import ANYTHING, CodecConfig, Method, Modality, Site, Step, Trait
from simsplit.packets import Leg

_FLOAT = torch.finfo(torch.float32)
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class CastConfig(CodecConfig):
    """A narrower number format on the wire."""

    kind: Literal["cast"] = "cast"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    works_in_sessions: ClassVar[bool] = True
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT})
    ended_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.FORMAT})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True
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

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Round to the narrow format."""
        return (x.to(self.dtype),)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        return tensors[0].float()


class Int8(Method):
    """Eight bits per value and a scale per sample, rounded without bias."""

    num_side = 1

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Return the int8 values, and an fp32 scale per sample."""
        x_BD = x.float().flatten(1)
        largest_B1 = x_BD.abs().amax(1, keepdim=True)
        # Below the upper bound, 127 times the scale is finite.
        scale_B1 = (largest_B1 / 127).clamp(_FLOAT.tiny, _FLOAT.max / 128)
        noise = torch.rand(x_BD.shape, generator=step.make_rng("int8", _count_packs(step)))
        rounded = (x_BD / scale_B1 + noise.to(x.device)).floor_().clamp_(-127, 127)
        return rounded.to(torch.int8).view(x.shape), scale_B1.squeeze(1)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        values, scale_B = tensors
        return values.float() * scale_B.view(-1, *([1] * (values.dim() - 1)))


def _count_packs(step: Step) -> int:
    """Return how often this step has packed before, so that no two tensors share their noise."""
    step.memo["int8"] = step.memo.get("int8", -1) + 1
    return int(step.memo["int8"])
