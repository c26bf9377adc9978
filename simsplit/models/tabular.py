"""A network of linear layers for rows of numbers, cut between any two of them."""

from itertools import pairwise
from math import prod
from typing import Literal

from pydantic import Field
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.fresh import (
    MOST_LAYERS,
    MOST_WIDTH,
    InputShape,
    LaidOut,
    Place,
    Segments,
    Shape,
)

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class Mlp(LaidOut):
    """Linear layers on flattened samples of any shape, cut after any of them."""

    cut_field = "head"
    kind: Literal["mlp"] = "mlp"
    widths: tuple[int, ...] = Field(default=(64, 64, 32), min_length=2, max_length=MOST_LAYERS)
    """Widths of the hidden layers; the last layer, whose outputs are the classes, comes after them.
    """
    head: int = Field(default=1, ge=1)
    """Number of layers in the client's head."""
    tail: int = Field(default=1, ge=1)
    """Number of layers in the client's tail, the last layer included."""
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    """Activation after each hidden layer."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the values after each hidden layer that is dropped in training."""

    def count_passed(self, place: Place) -> int:
        # A layer is followed by its activation, and by dropout if there is any.
        return (2 + bool(self.dropout)) * super().count_passed(place)

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        trunk = len(self.widths) + 1 - self.head - self.tail
        if trunk < 1:
            most = len(self.widths) - 1
            raise ScenarioError(
                "model.head",
                f"head and tail together must have at most {most + 1} of the "
                f"{len(self.widths) + 1} layers, so that the trunk has one, got head: {self.head}, "
                f"tail: {self.tail}",
            )
        for width in self.widths:
            if not 1 <= width <= MOST_WIDTH:
                raise ScenarioError(
                    "model.widths", f"must be from 1 to {MOST_WIDTH:,} each, got {width:,}"
                )
        return (self.widths[self.head - 1],), (self.widths[-self.tail],)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        blocks = [self._build_block(*pair) for pair in pairwise((prod(input_shape), *self.widths))]
        blocks.append([nn.Linear(self.widths[-1], num_classes)])
        cuts = (0, self.head, len(blocks) - self.tail, len(blocks))
        head, trunk, tail = (
            nn.Sequential(*(layer for block in blocks[start:end] for layer in block))
            for start, end in pairwise(cuts)
        )
        return Segments(nn.Sequential(nn.Flatten(), *head), trunk, tail)

    def _build_block(self, inputs: int, outputs: int) -> list[nn.Module]:
        dropout = [nn.Dropout(self.dropout)] if self.dropout else []
        return [nn.Linear(inputs, outputs), _ACTIVATIONS[self.activation](), *dropout]
