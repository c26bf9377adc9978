"""A network that learns CIFAR-10 in ten epochs: airbench94 (Jordan, 2024), cut in three.

Patches of two by two pixels are whitened. Three blocks of two convolutions each follow, the first
of them on the client, whole or as far as its first convolution. The network has 1,972,792 weights.

Layers, widths and starting values are those of the published code (KellerJordan/cifar10-airbench):

- The first convolution never learns. That code computes its filters from patches of the training
  data. For natural images they are Haar's four patterns in three pairs of opponent colours, so here
  they are constants, scaled by the variances of CIFAR-10's first 5,000 training images; no party
  needs another's data. Each filter is followed by its negative.
- Batch normalisation learns only its biases, 64 times as fast as everything else. Here a bias is
  stored as an eighth of itself, which for SGD is the same with a single learning rate.
- Convolutions start as the identity on as many channels as they have inputs.

That code stops training the first layer's bias after three epochs; here it learns throughout.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from simsplit.models.fresh import MOST_WIDTH, InputShape, LaidOut, Owner, Place, Segments, Shape
from simsplit.models.layers import BatchNorm2d
from simsplit.models.vision import Cut, build_misfit

COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
"""Brightness, red against blue, and green against both; not normalised."""
PATTERNS = ((1, 1, 1, 1), (1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1))
"""Two by two pixels, row by row: equal, upper against lower, left against right, and diagonal."""
VARIANCES = (
    (10.0, 0.396, 0.336, 0.0536),
    (0.752, 0.00574, 0.00379, 0.000222),
    (0.163, 0.00216, 0.0016, 0.000142),
)
"""Variances by colour and pattern, for images whose channels have mean 0 and standard deviation 1.
"""
VARIANCE_EPS = 5e-4
"""Value added to each variance, so that filters with little variance are not amplified too much."""
BIAS_FACTOR = 8.0
"""Ratio of a normalisation's bias to the stored weight."""
LOGIT_SCALE = 1 / 9
"""Factor on the logits."""
_SECOND_HALF = 3
"""Layers of a block from its second convolution on."""


class Airbench(LaidOut):
    """The network airbench94, for colour images of about 32 pixels."""

    cut_field = "cut"

    images_only = True
    name_prefixes: ClassVar[Mapping[Owner, str]] = {"tail": "linear."}
    kind: Literal["airbench"] = "airbench"
    width: int = Field(default=64, ge=24, le=MOST_WIDTH)
    """Channels of the first block; the others have four times as many."""
    cut: Cut = "l2h"
    """The head: whitening and the first convolution (l1h), or the first block (l2h)."""

    def count_passed(self, place: Place) -> int:
        return _SECOND_HALF * ((place == "l2h") - (self.cut == "l2h"))

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        # Each block halves the image, and the last pooling is three by three.
        channels, *sides = input_shape
        left = [(side - 1) // 8 // 3 for side in sides]
        if channels != 3 or left != [1, 1]:
            size = "" if left == [1, 1] else "25 to 48"
            raise build_misfit(f"{self.kind} takes 25x25 to 48x48 in 3 channels", input_shape, size)
        high, wide = ((side - 1) // 2 for side in sides)
        return (self.width, high, wide), (4 * self.width,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        w = self.width
        lower = [Whitening(), nn.GELU(), *_build_block(Whitening.FILTERS, w)]
        upper = [*_build_block(w, 4 * w), *_build_block(4 * w, 4 * w), nn.MaxPool2d(3)]
        ends = len(lower) - (_SECOND_HALF if self.cut == "l1h" else 0)
        head, trunk = lower[:ends], [*lower[ends:], *upper, nn.Flatten()]
        tail = ScaledLinear(4 * w, num_classes, bias=False)
        return Segments(nn.Sequential(*head), nn.Sequential(*trunk), tail)


def _build_block(inputs: int, outputs: int) -> list[nn.Module]:
    first = [Convolution(inputs, outputs), nn.MaxPool2d(2), Norm(outputs), nn.GELU()]
    return [*first, Convolution(outputs, outputs), Norm(outputs), nn.GELU()]


class Whitening(nn.Conv2d):
    """The convolution that whitens patches of two by two pixels; only its bias learns."""

    FILTERS: ClassVar[int] = 24

    def __init__(self) -> None:
        super().__init__(3, self.FILTERS, 2)
        self.weight.requires_grad_(False)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(build_whitening_filters())
            assert self.bias is not None
            self.bias.zero_()


def build_whitening_filters() -> Tensor:
    """Return the filters, 24 x 3 x 2 x 2: twelve, and their negatives."""
    colours = nn.functional.normalize(torch.tensor(COLOURS, dtype=torch.float64))
    patterns = torch.tensor(PATTERNS, dtype=torch.float64).view(4, 2, 2) / 2
    scale = (torch.tensor(VARIANCES, dtype=torch.float64) + VARIANCE_EPS).rsqrt()
    filters = torch.einsum("kc,jhw,kj->kjchw", colours, patterns, scale).flatten(0, 1)
    return torch.cat([filters, -filters]).float()


class Convolution(nn.Conv2d):
    """A 3x3 convolution of the same size without bias; its first filters copy their channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.dirac_(self.weight.data[: self.in_channels])


class Norm(BatchNorm2d):
    """Batch normalisation with fast running statistics; only the bias learns, 64 times as fast."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch and positions; use running statistics for a single value."""
        batch = self.training and input.numel() > input.shape[1]
        mean, var, momentum = self.running_mean, self.running_var, self.momentum or 0.0
        return batch_norm(
            input, mean, var, self.weight, BIAS_FACTOR * self.bias, batch, momentum, self.eps
        )


class ScaledLinear(nn.Linear):
    """A linear layer whose outputs are divided by nine."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return super().forward(input) * LOGIT_SCALE
