"""This module implements learned layers around the cut: a 1x1 convolution, and BottleNet++.

The first is a linear layer (LightSplit's baseline L-1, after BottleNet).

The sender convolves C channels to max(1, floor(C / ratio)), the receiver back to C. Both layers are
linear, with a bias. The channels of a flat feature vector are its entries.

BottleNet++ (Shao and Zhang, ICC Workshops 2020) is a trained codec around the cut: the client
reduces C channels to C / ratio with a 3x3 convolution, batch normalisation and a sigmoid; the
server restores them with a 3x3 convolution, batch normalisation and ReLU. The paper also has a
noisy channel and reduces the resolution; this method does neither.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.methods.method import (
    IMAGES,
    CodecConfig,
    Method,
    MethodConfig,
    Shape,
    Site,
    Step,
    Trait,
)
from simsplit.models.layers import BatchNorm2d
from simsplit.seeds import isolate


class Learned1x1Config(CodecConfig):
    """A learned 1x1 convolution to fewer channels, and another one back."""

    kind: Literal["learned1x1"] = "learned1x1"
    ratio: float = Field(default=8, ge=1)
    """Divisor of the number of channels; the result is rounded down to at least 1."""
    required_traits = frozenset({Trait.VALUES})
    once = True

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        if len(shape) == 2:
            raise ScenarioError(
                where,
                "learned1x1 has a layer for channels of images or for single vectors, and what "
                f"crosses is {shape[0]} x {shape[1]} values; cut at a convolution, or use topk or "
                "quantise",
            )
        return (max(1, int(shape[0] / self.ratio)), *shape[1:])

    def build(self, site: Site) -> Method:
        wide, narrow = site.shape[0], self.compute_sent_shape(site.shape, site.where)[0]
        sizes = (wide, narrow) if site.sends else (narrow, wide)
        with isolate(site.seed, "learned1x1"):
            flat = len(site.shape) == 1
            return LearnedLayers(nn.Linear(*sizes) if flat else nn.Conv2d(*sizes, kernel_size=1))


class LearnedLayers(Method):
    """The learned layers of one side: to fewer channels at the sender, back at the receiver."""

    def __init__(self, layer: nn.Module) -> None:
        self.module: nn.Module = layer

    def encode(self, z: Tensor, step: Step) -> Tensor:
        out: Tensor = self.module(z)
        return out

    lift = encode


class BottlenetConfig(MethodConfig):
    """A convolutional codec, trained with the task."""

    kind: Literal["bottlenet"] = "bottlenet"
    ratio: float = Field(default=8, ge=1)
    """Factor by which the number of channels shrinks, rounded down; at least one is kept."""
    modalities = IMAGES
    required_traits = frozenset({Trait.VALUES, Trait.SHAPE})
    once = True

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        if len(shape) != 3:
            raise ScenarioError(
                where, f"bottlenet needs a cut of channels x height x width, got the shape {shape}"
            )
        return (max(1, int(shape[0] / self.ratio)), *shape[1:])

    def build(self, site: Site) -> Method:
        wide, narrow = site.shape[0], self.compute_sent_shape(site.shape, site.where)[0]
        inputs, outputs = (wide, narrow) if site.sends else (narrow, wide)
        with isolate(site.seed, "bottlenet"):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            activation = nn.Sigmoid() if site.sends else nn.ReLU()
            return LearnedLayers(nn.Sequential(convolution, BatchNorm2d(outputs), activation))
