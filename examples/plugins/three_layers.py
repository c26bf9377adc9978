"""A model: three linear layers, one to each segment."""

from math import prod
from typing import Literal

from pydantic import Field
from torch import nn

from simsplit.models.fresh import LaidOut, Segments


class ThreeLayersConfig(LaidOut):
    """Three linear layers on flattened images of any size."""

    kind: Literal["three_layers"] = "three_layers"
    width: int = Field(default=64, ge=1)
    """Values at the cut, and again between trunk and tail."""

    def compute_shapes(self, input_shape):
        """Return what crosses the cut, and what comes back, per sample."""
        return (self.width,), (self.width,)

    def make_segments(self, input_shape, num_classes):
        """Build the layers; their weights are drawn elsewhere, by a stream for each client."""
        head = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), self.width), nn.ReLU())
        trunk = nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU())
        return Segments(head, trunk, nn.Linear(self.width, num_classes))


MODELS = {"three_layers": ThreeLayersConfig}
