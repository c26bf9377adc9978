"""Decoders and discriminators of the published attacks, for cuts of any shape.

At the papers' own cuts they have the papers' layers, and tests count their parameters. At other
cuts they have as many upsampling stages as the image's size needs, followed by a resize.
"""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from simsplit.errors import ScenarioError
from simsplit.models.fresh import InputShape, Shape
from simsplit.models.layers import BatchNorm2d


def glorot(module: nn.Module) -> nn.Module:
    """Initialise a module as Keras does, and return it.

    Weights are Glorot-uniform, biases zero, embeddings uniform in +-.05.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            nn.init.uniform_(layer.weight, -0.05, 0.05)
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def count_doublings(cut: Shape, image: InputShape) -> int:
    """Compute how often a cut's height and width must double to reach the image's.

    Raise ScenarioError for a cut that has neither.
    """
    if len(cut) != 3:
        raise ScenarioError(
            "attacks",
            f"a decoder of whitebox, sdar, fora or pcat needs channels, height and width, and the "
            f"cut of this model has {'x'.join(map(str, cut))} values; use a head that ends in "
            "channels, or ridge, unsplit or rmle",
        )
    return max(0, math.ceil(math.log2(max(image[1] / cut[1], image[2] / cut[2]))))


class Sized(nn.Module):
    """Layers followed by a resize to the image's size where it differs."""

    def __init__(self, layers: nn.Module, image: InputShape) -> None:
        super().__init__()
        self.layers, self.size = layers, image[1:]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out if out.shape[2:] == self.size else interpolate(out, self.size, mode="bilinear")


def sdar_decoder(channels: int, cut: Shape, image: InputShape) -> nn.Module:
    """Build SDAR's decoder; at ResNet-20's levels 4 and 7 it has 19,107 and 84,003 parameters.

    `channels` is the number of input channels: the cut's, and one more if labels are known.
    """
    layers: list[nn.Module] = []
    times, wide = count_doublings(cut, image), cut[0]
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
    """Build a convolution with normalisation and activation."""
    return [layer(inputs, outputs, 3, padding=1), BatchNorm2d(outputs), nn.ReLU()]


def feature_discriminator(channels: int, cut: Shape) -> nn.Module:
    """Build SDAR's discriminator of smashed data.

    At ResNet-20's levels 3, 4 to 6 and 7 to 9 it is the published one, with seven, six and five
    convolutions (the last of 2,144,897 parameters). Its widths grow with the cut's channels, within
    bounds. The last convolution is not activated.
    """
    strided = 2 if cut[1] >= 32 else 1 if cut[1] >= 16 else 0
    width = min(max(cut[0] // 2 ** (2 - strided), 8), 32)
    first = [2 * width, 4 * width, 8 * width][2 - strided :]
    plan = [(outputs, 1 + (place > 0)) for place, outputs in enumerate(first)]
    plan += [*[(16 * width, 1)] * 3, (16 * width, 2)]
    return _discriminator(channels, plan, cut[1:], active_last=False)


def image_discriminator(channels: int, image: InputShape) -> nn.Module:
    """Build SDAR's discriminator of real and decoded images."""
    plan = [(64, 1), (128, 2), (128, 2), (256, 2)]
    return _discriminator(channels, plan, image[1:], active_last=True)


def _discriminator(
    channels: int, plan: list[tuple[int, int]], size: tuple[int, ...], *, active_last: bool
) -> nn.Module:
    """Build convolutions and one logit; all but the first and the last are normalised.

    `plan` holds each convolution's output channels and stride.
    """
    layers: list[nn.Module] = []
    sides, last = size, len(plan) - 1
    for index, (outputs, stride) in enumerate(plan):
        layers.append(nn.Conv2d(channels, outputs, 3, stride, padding=1))
        if 0 < index < last:
            layers.append(BatchNorm2d(outputs))
        if index < last or active_last:
            layers.append(nn.LeakyReLU(0.2))
        # With a padding of 1, a stride rounds sizes up.
        channels, sides = outputs, tuple(-(-side // stride) for side in sides)
    layers += [nn.Flatten(), nn.Dropout(0.4), nn.Linear(channels * math.prod(sides), 1)]
    return nn.Sequential(*layers)


class WithLabels(nn.Module):
    """A network that also gets labels, embedded as one more input channel."""

    def __init__(self, layers: nn.Module, classes: int, size: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.size = layers, size
        self.plane = nn.Sequential(nn.Embedding(classes, 50), nn.Linear(50, math.prod(size)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        plane = self.plane(labels).view(len(x), 1, *self.size)
        out: Tensor = self.layers(torch.cat([x, plane], 1))
        return out


def critic(
    cut: Shape, image: InputShape, *, halves_first: bool = True, width: int = 256
) -> nn.Module:
    """Build FORA's critic (8.04 million parameters at MobileNet's second level, 256 wide).

    The more often the cut's size was halved, the fewer of its first layers halve it further. FSHA's
    published code intends this too, but its branches overwrite one another: it runs the last branch
    at every level, a single convolution of stride 1 (without `halves_first`). The two agree where
    the size was halved three times.
    """
    times = count_doublings(cut, image) if halves_first else 3
    layers: list[nn.Module] = []
    if times < 2:
        layers += [nn.Conv2d(cut[0], width // 2, 3, 2, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width // 2, width, 3, 2, padding=1)]
    else:
        layers += [nn.Conv2d(cut[0], width, 3, 2 if times == 2 else 1, padding=1)]
    layers += [PreActivated(width) for _ in range(6)]
    layers += [nn.Conv2d(width, width, 3, 2, padding=1), nn.Flatten()]
    shrunk = 8 if times < 2 else 4 if times == 2 else 2
    places = math.prod(-(-side // shrunk) for side in cut[1:])
    return nn.Sequential(*layers, nn.Linear(width * places, 1))


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


def gradient_penalty(
    net: nn.Module,
    real: Tensor,
    fake: Tensor,
    rng: torch.Generator,
    over: Literal["sample", "channel"] = "sample",
) -> Tensor:
    """Compute the penalty on a critic's gradient norm between real and fake (Gulrajani et al.).

    The norm is taken over a whole sample, as in FORA's code, or over each channel's height and
    width, as in FSHA's.
    """
    share = torch.rand(len(real), *[1] * (real.dim() - 1), generator=rng).to(real)
    between = (share * real + (1 - share) * fake).detach().requires_grad_()
    # The critic learns through its own gradient, so that one needs a graph.
    (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    norms = slope.flatten(1 if over == "sample" else 2).norm(dim=-1)
    penalty: Tensor = (norms - 1).square().mean()
    return penalty


def fora_substitute(cut: Shape, image: InputShape) -> nn.Module:
    """Build FORA's substitute of a head: two convolutions as wide as the cut, then pooling."""
    blocks = [*_block(nn.Conv2d, image[0], cut[0]), *_block(nn.Conv2d, cut[0], cut[0])]
    return nn.Sequential(*blocks, nn.AdaptiveMaxPool2d(cut[1:]))


def fora_decoder(cut: Shape, image: InputShape) -> nn.Module:
    """Build FORA's decoder (155,145 parameters at MobileNet's second level); output in [-1, 1].

    It has a transposed convolution for each doubling, of 256, 128 and 64 channels.
    """
    layers: list[nn.Module] = []
    widths = _decoder_widths(cut, image, 64)
    for inputs, outputs in pairwise(widths):
        layers += [_build_doubling(inputs, outputs), BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
    layers += [nn.Conv2d(widths[-1], image[0], 3, padding=1), BatchNorm2d(image[0]), nn.Tanh()]
    return Sized(nn.Sequential(*layers), image)


def fsha_pilot(cut: Shape, image: InputShape) -> nn.Module:
    """Build FSHA's pilot: convolutions that halve the image down to the cut's size.

    The first has 64 channels, and a last one leads to the cut's channels. As in the published code,
    none is followed by an activation.
    """
    layers: list[nn.Module] = []
    channels = image[0]
    for halving in range(count_doublings(cut, image)):
        outputs = 64 * 2**halving
        layers += [nn.Conv2d(channels, outputs, 3, 2, padding=1)]
        channels = outputs
    layers += [nn.Conv2d(channels, cut[0], 3, padding=1), nn.AdaptiveAvgPool2d(cut[1:])]
    return nn.Sequential(*layers)


def fsha_decoder(cut: Shape, image: InputShape) -> nn.Module:
    """Build FSHA's decoder: transposed convolutions up to the image's size; output in [-1, 1].

    They have 256 and 128 channels and no activations, as published. The last layer is a plain
    convolution up to two doublings, and a transposed one from three on.
    """
    widths = _decoder_widths(cut, image, 128)
    whole = widths if len(widths) <= 3 else widths[:-1]
    layers: list[nn.Module] = [_build_doubling(*pair) for pair in pairwise(whole)]
    last = nn.Conv2d(whole[-1], image[0], 3, padding=1)
    layers.append(last if whole is widths else _build_doubling(whole[-1], image[0]))
    return Sized(nn.Sequential(*layers, nn.Tanh()), image)


def _decoder_widths(cut: Shape, image: InputShape, narrowest: int) -> list[int]:
    """List the channels of the cut and of each doubling's outputs."""
    times = range(count_doublings(cut, image))
    return [cut[0], *(max(narrowest, 256 // 2**time) for time in times)]


def _build_doubling(inputs: int, outputs: int) -> nn.Module:
    """Build a transposed convolution that doubles height and width."""
    return nn.ConvTranspose2d(inputs, outputs, 3, 2, padding=1, output_padding=1)
