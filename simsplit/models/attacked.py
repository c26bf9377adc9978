"""Networks from papers on reconstruction attacks, cut where those papers cut them.

They are ResNet-20 as in SDAR's Keras code (Glorot-uniform weights, 1x1 convolutions on its
shortcuts), MobileNet as in FORA's, and UnSplit's small network, which is similar to LeNet. No
segment modifies its input in place.
"""

import itertools
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from simsplit.models.fresh import MOST_WIDTH, InputShape, LaidOut, Segments, Shape
from simsplit.models.layers import BatchNorm2d
from simsplit.models.vision import build_misfit


class ResNet20(LaidOut):
    """ResNet-20 for small images: nine residual blocks; the tail pools and classifies."""

    start = "glorot"

    images_only = True
    cut_field = "cut"
    kind: Literal["resnet20"] = "resnet20"
    cut: int = Field(default=4, ge=1, le=8)
    """Number of residual blocks in the head, of nine; SDAR's levels are 4 and 7."""
    width: int = Field(default=16, ge=1, le=MOST_WIDTH)
    """Channels of the first three blocks; the others have two and four times as many."""

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        # Blocks four and seven halve the image, rounding up.
        halved = (self.cut > 3) + (self.cut > 6)
        cut, features = (
            (self.width * 2**n, *(-(-side // 2**n) for side in input_shape[1:]))
            for n in (halved, 2)
        )
        return cut, features

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        w = self.width
        stem = nn.Sequential(
            nn.Conv2d(input_shape[0], w, 3, padding=1, bias=False), BatchNorm2d(w), nn.ReLU()
        )
        wide = [w] * 4 + [2 * w] * 3 + [4 * w] * 3
        blocks = [Residual(*pair) for pair in itertools.pairwise(wide)]
        tail = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, num_classes))
        return Segments(
            nn.Sequential(stem, *blocks[: self.cut]), nn.Sequential(*blocks[self.cut :]), tail
        )


class Residual(nn.Module):
    """A residual block of two 3x3 convolutions. If it has more outputs, it halves the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            narrow = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.shortcut(x))
        return out


_MOBILE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2))
"""Channels and stride of MobileNet's separable convolutions; one more of 1024 follows."""


class MobileNet(LaidOut):
    """MobileNet for small images: a convolution and thirteen separable ones."""

    images_only = True
    cut_field = "cut"
    kind: Literal["mobilenet"] = "mobilenet"
    cut: int = Field(default=2, ge=1, le=13)
    """Number of convolutions in the head, the first one included; FORA's level is 2."""

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        # Strides of 2 halve the image, rounding up.
        layers = ((32, 2), *_MOBILE)[: self.cut]
        height, width = input_shape[1:]
        for _, stride in layers:
            height, width = -(-height // stride), -(-width // stride)
        return (layers[-1][0], height, width), (1024,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        layers = [_build_convolution(input_shape[0], 32, 2)]
        inputs = 32
        for outputs, stride in (*_MOBILE, (1024, 1)):
            by_channel = _build_convolution(inputs, inputs, stride, groups=inputs)
            layers.append(nn.Sequential(by_channel, _build_convolution(inputs, outputs, 1, size=1)))
            inputs = outputs
        trunk = [*layers[self.cut :], nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Segments(
            nn.Sequential(*layers[: self.cut]), nn.Sequential(*trunk), nn.Linear(1024, num_classes)
        )


def _build_convolution(
    inputs: int, outputs: int, stride: int, size: int = 3, groups: int = 1
) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, BatchNorm2d(outputs), nn.ReLU())


class MnistNet(LaidOut):
    """Two convolutions and three linear layers, for grey images of 28 pixels."""

    images_only = True
    cut_field = "cut"
    kind: Literal["mnistnet"] = "mnistnet"
    cut: Literal[2, 4] = 2
    """UnSplit's cuts: after the first pooling (2), or after the second ReLU (4)."""

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        if input_shape != (1, 28, 28):
            size = "" if input_shape[1:] == (28, 28) else "28"
            raise build_misfit(f"{self.kind} takes 28x28 in 1 channel", input_shape, size)
        return ((8, 12, 12) if self.cut == 2 else (16, 8, 8)), (84,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        layers = [nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        layers += [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        depth = 3 if self.cut == 2 else 5
        return Segments(
            nn.Sequential(*layers[:depth]),
            nn.Sequential(*layers[depth:]),
            nn.Linear(84, num_classes),
        )
