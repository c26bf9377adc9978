"""BottleNet++ (Shao and Zhang, ICC Workshops 2020): a trained codec around the cut.

The client reduces C channels to C / ratio with a 3x3 convolution, batch normalisation and a
sigmoid; the server restores them with a 3x3 convolution, batch normalisation and ReLU. The paper
also has a noisy channel and reduces the resolution; this method does neither.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.methods.learned1x1 import LearnedLayers
from simsplit.methods.method import IMAGES, Method, MethodConfig, Modality, Shape, Site, Trait
from simsplit.models.layers import BatchNorm2d
from simsplit.seeds import isolate


class BottlenetConfig(MethodConfig):
    """A convolutional codec, trained with the task."""

    kind: Literal["bottlenet"] = "bottlenet"
    ratio: float = Field(default=8, ge=1)
    """Factor by which the number of channels shrinks, rounded down; at least one is kept."""
    modalities: ClassVar[frozenset[Modality]] = IMAGES
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.SHAPE})
    once: ClassVar[bool] = True

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        if len(shape) != 3:
            raise ScenarioError(
                where, f"bottlenet needs a cut of channels x height x width, got the shape {shape}"
            )
        return (max(1, int(shape[0] / self.ratio)), *shape[1:])

    def build(self, site: Site) -> Method:
        wide, narrow = site.shape[0], self.compute_sent_shape(site.shape, site.where)[0]
        with isolate(site.seed, "bottlenet"):
            if site.sends:
                return LearnedLayers(_build_layers(wide, narrow, nn.Sigmoid()))
            return LearnedLayers(_build_layers(narrow, wide, nn.ReLU()))


def _build_layers(inputs: int, outputs: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), BatchNorm2d(outputs), activation
    )
