"""Decoders and discriminators of the published attacks, for cuts of any shape.

On the cuts that the papers name they are the papers' layers, to the parameter (tests count them);
on others as many upsampling stages as it takes, and at last a crop to the image's size.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from simsplit.models.fresh import InputShape, Shape
from simsplit.models.layers import BatchNorm2d


def glorot(module: nn.Module) -> nn.Module:
    """Keras's initialisation: Glorot-uniform weights, zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def doublings(cut: Shape, image: InputShape) -> int:
    """How often a cut's height and width must double to reach the image's."""
    return max(0, math.ceil(math.log2(max(image[1] / cut[1], image[2] / cut[2]))))


class Sized(nn.Module):
    """Layers, followed by a resize to the image's size if necessary."""

    def __init__(self, layers: nn.Module, image: InputShape) -> None:
        super().__init__()
        self.layers, self.size = layers, image[1:]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out if out.shape[2:] == self.size else interpolate(out, self.size, mode="bilinear")


def sdar_decoder(channels: int, cut: Shape, image: InputShape) -> nn.Module:
    """SDAR's: at levels 4 and 7 of ResNet-20 its own, with 19,107 and 84,003 parameters.

    `channels` are the decoder's inputs: the cut's, and one more where labels are known.
    """
    layers: list[nn.Module] = []
    times, wide = doublings(cut, image), cut[0]
    for time in range(times):
        layers += [nn.Upsample(scale_factor=2), *_block(nn.Conv2d, channels, wide)]
        narrow = max(1, wide // 2)
        inner = [wide] + [narrow] * (3 if time == times - 1 else 2)
        for inputs, outputs in pairwise(inner):
            layers += _block(nn.ConvTranspose2d, inputs, outputs)
        channels = wide = narrow
    layers += [nn.Conv2d(channels, image[0], 3, padding=1), nn.Sigmoid()]
    return Sized(nn.Sequential(*layers), image)


def _block(
    layer: type[nn.Conv2d | nn.ConvTranspose2d], inputs: int, outputs: int
) -> list[nn.Module]:
    return [layer(inputs, outputs, 3, padding=1), BatchNorm2d(outputs), nn.ReLU()]


def feature_discriminator(channels: int, cut: Shape) -> nn.Module:
    """SDAR's discriminator of smashed data: six convolutions; from 16 pixels on two are strided."""
    first = [(64, 1), (128, 2)] if cut[1] >= 16 else [(128, 1), (256, 1)]
    return _discriminator(channels, [*first, (256, 1), (256, 1), (256, 1), (256, 2)], cut[1:])


def image_discriminator(channels: int, image: InputShape) -> nn.Module:
    """SDAR's discriminator of real and decoded images."""
    return _discriminator(channels, [(64, 1), (128, 2), (128, 2), (256, 2)], image[1:])


def _discriminator(channels: int, plan: list[tuple[int, int]], size: tuple[int, ...]) -> nn.Module:
    """Convolutions with normalisation between them, and one logit."""
    layers: list[nn.Module] = []
    sides = size
    for index, (outputs, stride) in enumerate(plan):
        layers.append(nn.Conv2d(channels, outputs, 3, stride, padding=1))
        if 0 < index < len(plan) - 1:
            layers.append(BatchNorm2d(outputs))
        layers.append(nn.LeakyReLU(0.2))
        channels, sides = outputs, tuple(-(-side // stride) for side in sides)
    layers += [nn.Flatten(), nn.Dropout(0.4), nn.Linear(channels * math.prod(sides), 1)]
    return nn.Sequential(*layers)


class WithLabels(nn.Module):
    """A network that gets labels too, embedded as one more input channel."""

    def __init__(self, layers: nn.Module, classes: int, size: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.size = layers, size
        self.plane = nn.Sequential(nn.Embedding(classes, 50), nn.Linear(50, math.prod(size)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        plane = self.plane(labels).view(len(x), 1, *self.size)
        out: Tensor = self.layers(torch.cat([x, plane], 1))
        return out


def critic(cut: Shape) -> nn.Module:
    """FORA's critic (8.04 million parameters on MobileNet's second level); unbounded score."""
    layers: list[nn.Module] = [nn.Conv2d(cut[0], 128, 3, 2, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(128, 256, 3, 2, padding=1)]
    layers += [PreActivated(256) for _ in range(6)]
    layers += [nn.Conv2d(256, 256, 3, 2, padding=1), nn.Flatten()]
    height, width = (-(-side // 8) for side in cut[1:])
    return nn.Sequential(*layers, nn.Linear(256 * height * width, 1))


class PreActivated(nn.Module):
    """A pre-activation residual block without normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def gradient_penalty(net: nn.Module, real: Tensor, fake: Tensor, rng: torch.Generator) -> Tensor:
    """Deviation of a critic's gradient norm from 1 between real and fake (Gulrajani et al.)."""
    share = torch.rand(len(real), *[1] * (real.dim() - 1), generator=rng).to(real)
    between = (share * real + (1 - share) * fake).detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    penalty: Tensor = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return penalty


def fora_substitute(cut: Shape, image: InputShape) -> nn.Module:
    """FORA's substitute of a head: two convolutions as wide as the cut, pooled to its size."""
    layers: list[nn.Module] = []
    for inputs in (image[0], cut[0]):
        layers += [nn.Conv2d(inputs, cut[0], 3, padding=1), BatchNorm2d(cut[0]), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(cut[1:]))


def fora_decoder(cut: Shape, image: InputShape) -> nn.Module:
    """FORA's decoder: transposed convolutions of 256 channels; output in [-1, 1]."""
    layers: list[nn.Module] = []
    channels = cut[0]
    for _ in range(doublings(cut, image)):
        layers += [nn.ConvTranspose2d(channels, 256, 4, 2, padding=1), BatchNorm2d(256)]
        layers += [nn.LeakyReLU(0.2)]
        channels = 256
    layers += [nn.Conv2d(channels, image[0], 3, padding=1), BatchNorm2d(image[0]), nn.Tanh()]
    return Sized(nn.Sequential(*layers), image)


def fsha_pilot(cut: Shape, image: InputShape) -> nn.Module:
    """FSHA's pilot: convolutions that halve the image down to the cut's size, from 64 channels."""
    layers: list[nn.Module] = []
    channels = image[0]
    for halving in range(doublings(cut, image)):
        outputs = 64 * 2**halving
        layers += [nn.Conv2d(channels, outputs, 3, 2, padding=1), nn.ReLU()]
        channels = outputs
    layers += [nn.Conv2d(channels, cut[0], 3, padding=1), nn.AdaptiveAvgPool2d(cut[1:])]
    return nn.Sequential(*layers)


def fsha_decoder(cut: Shape, image: InputShape) -> nn.Module:
    """FSHA's decoder: transposed convolutions up to the image's size; output in [-1, 1]."""
    times = doublings(cut, image)
    layers: list[nn.Module] = []
    channels = cut[0]
    for time in range(times - 1):
        outputs = 128 * 2 ** (times - 2 - time)
        layers += [nn.ConvTranspose2d(channels, outputs, 4, 2, padding=1), nn.ReLU()]
        channels = outputs
    last = (
        nn.ConvTranspose2d(channels, image[0], 4, 2, padding=1)
        if times
        else nn.Conv2d(channels, image[0], 3, padding=1)
    )
    return Sized(nn.Sequential(*layers, last, nn.Tanh()), image)
