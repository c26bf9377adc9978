"""A network that learns CIFAR-10 in ten epochs: airbench94 (Jordan, 2024), cut in three.

Patches of two by two pixels are whitened, and three blocks of two convolutions each follow, the
first of them at the client; 1,972,792 weights in all.
Layers, widths and starting values are the published code's (KellerJordan/cifar10-airbench):

- The first convolution never learns. That code computes it from the patches of the training data at
  hand. Of natural images its filters are Haar's four patterns in three pairs of opponent colours,
  so they are written down here, with the variances that CIFAR-10's first 5,000 training images
  have; nobody has to see anybody's data. Each filter stands there with its negative.
- Of batch normalisation only the biases learn, 64 times as fast as all else. Here a bias is kept
  as an eighth of itself, which for SGD is the same at one rate.
- Convolutions start as the identity on as many channels as they are given.

That code stops training the first layer's bias after three epochs; here it learns throughout.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from simsplit.models.fresh import InputShape, LaidOut, Owner, Segments, Shape
from simsplit.models.layers import BatchNorm2d
from simsplit.models.vision import misfit

COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
"""Brightness, red against blue, and green against both; not yet of length one."""
PATTERNS = ((1, 1, 1, 1), (1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1))
"""Two pixels by two, row by row: all alike, upper against lower, left against right, crossed."""
VARIANCES = (
    (10.0, 0.396, 0.336, 0.0536),
    (0.752, 0.00574, 0.00379, 0.000222),
    (0.163, 0.00216, 0.0016, 0.000142),
)
"""By colour and pattern, of images whose channels have mean 0 and standard deviation 1."""
LEAST = 5e-4
"""Added to each variance, so that what hardly varies is not blown up."""
FASTER = 8.0
"""How many times a bias of the normalisation is what is kept of it."""
SCALE = 1 / 9
"""Of the logits."""


class Airbench(LaidOut):
    """airbench94, for colour images of about 32 pixels; the head is its first block."""

    images_only: ClassVar[bool] = True
    kind: Literal["airbench"] = "airbench"
    width: int = Field(default=64, ge=24)
    """Channels of the first block; the others have four times as many."""

    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """Each block halves an image, and what is left is pooled three by three, to one."""
        channels, *sides = input_shape
        left = [(side - 1) // 8 // 3 for side in sides]
        if channels != 3 or left != [1, 1]:
            size = "" if left == [1, 1] else "25 to 48"
            raise misfit(f"{self.kind} takes 25x25 to 48x48 in 3 channels", input_shape, size)
        high, wide = ((side - 1) // 2 for side in sides)
        return (self.width, high, wide), (4 * self.width,)

    @staticmethod
    def called(owner: Owner) -> tuple[Owner, str]:
        """The tail is one layer."""
        return owner, "linear." if owner == "tail" else ""

    def segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        """The published layers, cut after the first block and before the last layer."""
        w = self.width
        head = nn.Sequential(Whitening(), nn.GELU(), *_block(Whitening.FILTERS, w))
        pooled = nn.MaxPool2d(3), nn.Flatten()
        trunk = nn.Sequential(*_block(w, 4 * w), *_block(4 * w, 4 * w), *pooled)
        return Segments(head, trunk, Scaled(4 * w, num_classes, bias=False))


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    first = [Convolution(inputs, outputs), nn.MaxPool2d(2), Norm(outputs), nn.GELU()]
    return [*first, Convolution(outputs, outputs), Norm(outputs), nn.GELU()]


class Whitening(nn.Conv2d):
    """Patches of two by two pixels, uncorrelated and of variance one; only a bias learns."""

    FILTERS: ClassVar[int] = 24

    def __init__(self) -> None:
        super().__init__(3, self.FILTERS, 2)
        self.weight.requires_grad_(False)

    def reset_parameters(self) -> None:
        """The filters, which are no draw, and a bias of zero."""
        with torch.no_grad():
            self.weight.copy_(whitening())
            assert self.bias is not None
            self.bias.zero_()


def whitening() -> Tensor:
    """The filters, 24 x 3 x 2 x 2: twelve, and their negatives."""
    colours = nn.functional.normalize(torch.tensor(COLOURS, dtype=torch.float64))
    patterns = torch.tensor(PATTERNS, dtype=torch.float64).view(4, 2, 2) / 2
    scale = (torch.tensor(VARIANCES, dtype=torch.float64) + LEAST).rsqrt()
    filters = torch.einsum("kc,jhw,kj->kjchw", colours, patterns, scale).flatten(0, 1)
    return torch.cat([filters, -filters]).float()


class Convolution(nn.Conv2d):
    """Three by three, of the same size and without bias; its first filters copy their channel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def reset_parameters(self) -> None:
        """As torch draws them, but for as many filters as there are channels to copy."""
        super().reset_parameters()
        nn.init.dirac_(self.weight.data[: self.in_channels])


class Norm(BatchNorm2d):
    """Batch normalisation of quick statistics, whose bias alone learns, 64 times as fast."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise over the batch and positions; one value alone, by the running statistics."""
        batch = self.training and input.numel() > input.shape[1]
        mean, var, momentum = self.running_mean, self.running_var, self.momentum or 0.0
        return batch_norm(
            input, mean, var, self.weight, FASTER * self.bias, batch, momentum, self.eps
        )


class Scaled(nn.Linear):
    """A linear layer whose outputs are a ninth as large."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Class scores, a ninth of what the layer gives."""
        return super().forward(input) * SCALE
