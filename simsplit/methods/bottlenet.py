"""BottleNet++ (Shao and Zhang, ICC Workshops 2020): a trained codec around the cut.

The client narrows C channels to C / ratio by a 3x3 convolution, batch normalisation and a sigmoid;
the server widens them by a 3x3 convolution, batch normalisation and ReLU. Without the paper's noisy
channel, and at full resolution.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.methods.base import IMAGES, Method, MethodConfig, Modality, Shape, Site, Trait
from simsplit.methods.learned1x1 import LearnedLayers
from simsplit.models.layers import BatchNorm2d
from simsplit.seeds import isolated


class BottlenetConfig(MethodConfig):
    """A convolutional codec, trained with the task."""

    kind: Literal["bottlenet"] = "bottlenet"
    ratio: float = Field(default=8, ge=1)
    """Channels are divided by this, rounded down, at least one kept."""
    suits: ClassVar[frozenset[Modality]] = IMAGES
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES, Trait.SHAPE})
    once: ClassVar[bool] = True

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """Fewer channels, the same height and width."""
        if len(shape) != 3:
            raise ScenarioError(
                where, f"bottlenet convolves, so it needs channels x height x width, got {shape}"
            )
        return (max(1, int(shape[0] / self.ratio)), *shape[1:])

    def build(self, site: Site) -> Method:
        """The encoder on the client, the decoder on the server."""
        wide, narrow = site.shape[0], self.sent_shape(site.shape, site.where)[0]
        with isolated(site.seed, "bottlenet"):
            if site.sends:
                return LearnedLayers(_layers(wide, narrow, nn.Sigmoid()))
            return LearnedLayers(_layers(narrow, wide, nn.ReLU()))


def _layers(inputs: int, outputs: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), BatchNorm2d(outputs), activation
    )
