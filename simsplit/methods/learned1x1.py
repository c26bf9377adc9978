"""Learned 1x1 (LightSplit's baseline L-1, after BottleNet): a trained channel bottleneck.

A 1x1 convolution C -> max(1, floor(C / ratio)) where the tensor is sent, one back to C where it
arrives; linear, with bias. On a flat feature vector the channels are the vector's entries.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from simsplit.methods.base import CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.seeds import isolated


class Learned1x1Config(CodecConfig):
    """A learned 1x1 convolution to fewer channels, and one back."""

    kind: Literal["learned1x1"] = "learned1x1"
    ratio: float = Field(default=8, ge=1)
    """Channels are divided by this, rounded down, at least one kept."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    once: ClassVar[bool] = True

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """Fewer channels, the same height and width."""
        return (max(1, int(shape[0] / self.ratio)), *shape[1:])

    def build(self, site: Site) -> Method:
        """The narrowing layer where it sends, the widening one where it receives."""
        wide, narrow = site.shape[0], self.sent_shape(site.shape, site.where)[0]
        with isolated(site.seed, "learned1x1"):
            layer = _layer(wide, narrow, site) if site.sends else _layer(narrow, wide, site)
        return LearnedLayers(layer)


def _layer(inputs: int, outputs: int, site: Site) -> nn.Module:
    if len(site.shape) == 1:
        return nn.Linear(inputs, outputs)
    return nn.Conv2d(inputs, outputs, kernel_size=1)


class LearnedLayers(Method):
    """Learned layers of one side: the sender's go to fewer channels, the receiver's back."""

    def __init__(self, layer: nn.Module) -> None:
        self.module: nn.Module = layer

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Go from C channels to fewer."""
        out: Tensor = self.module(z)
        return out

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Go back to C channels."""
        out: Tensor = self.module(z)
        return out
