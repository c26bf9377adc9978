"""Values as codes of few bits, and codes side by side in bytes: how these cross the wire.

A 12-bit index in an int16 would be counted at 16 bits; here it costs 12.
"""

from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import pad

MOST_NORMAL = 6
"""Bits of normal levels, at most: the search for more takes a second, and the squared error of 6
is below a thousandth of the values' variance."""


def width_of(values: int) -> int:
    """How many bits tell this many values apart."""
    return max(1, (values - 1).bit_length())


def on_levels(x_BD: Tensor, bits: int, noise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Each row's values on 2**bits even levels over its own range, rounded down after `noise` (of
    0 to 1) is added; and the rows' minima and steps, B x 2.
    """
    low_B1, high_B1 = x_BD.amin(1, keepdim=True), x_BD.amax(1, keepdim=True)
    top = 2**bits - 1
    # halves first: a range over all of float's would overflow
    step_B1 = ((high_B1 / 2 - low_B1 / 2) / top * 2).clamp_min(torch.finfo(torch.float32).tiny)
    codes_BD = (x_BD - low_B1) / step_B1
    codes_BD += noise
    return codes_BD.floor_().clamp_(0, top), torch.cat([low_B1, step_B1], 1)


def from_levels(codes_BD: Tensor, range_B2: Tensor) -> Tensor:
    """The values that codes stand for."""
    return range_B2[:, :1] + codes_BD * range_B2[:, 1:]


@cache
def normal_levels(bits: int) -> Tensor:
    """The 2**bits levels with the least squared error for a standard normal value (Max 1960,
    Lloyd 1982): each is the mean of what is nearest to it.
    """
    # the best many levels lie with the density of a normal of three times the variance
    count, wide = 2**bits, NormalDist(sigma=3**0.5)
    start = [wide.inv_cdf((index + 0.5) / count) for index in range(count)]
    levels, ends = torch.tensor(start, dtype=torch.float64), torch.tensor([torch.inf]).double()
    for _ in range(200 * count):
        borders = torch.cat([-ends, (levels[1:] + levels[:-1]) / 2, ends])
        share = torch.special.ndtr(borders).diff()
        better = torch.exp(-borders.square() / 2).diff() / share / -((2 * torch.pi) ** 0.5)
        moved, levels = (better - levels).abs().max(), better
        if moved < 1e-7:
            break
    return levels.float()


def on_normal_levels(x_BD: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """For each row's values, over their root mean square, the nearest of 2**bits normal levels;
    and the rows' scales, B x 1, by which a row's inner product with what is read is its squared
    norm (EDEN's unbiased scale).
    """
    tiny = torch.finfo(torch.float32).tiny
    top_B1 = x_BD.abs().amax(1, keepdim=True).clamp_min(tiny)  # squares of large values overflow
    x_BD = x_BD / top_B1
    size_B1 = x_BD.square().mean(1, keepdim=True).sqrt().clamp_min(tiny)
    x_BD = x_BD / size_B1
    levels = normal_levels(bits).to(x_BD.device)
    codes_BD = torch.bucketize(x_BD, (levels[1:] + levels[:-1]) / 2)
    told_B1 = (x_BD * levels[codes_BD]).sum(1, keepdim=True).clamp_min(tiny)
    scale_B1 = x_BD.square().sum(1, keepdim=True) / told_B1 * size_B1 * top_B1
    return codes_BD, scale_B1


def from_normal_levels(codes_BD: Tensor, scale_B1: Tensor, bits: int) -> Tensor:
    """The values that codes stand for."""
    return normal_levels(bits).to(codes_BD.device)[codes_BD] * scale_B1


def pack_bits(numbers_BN: Tensor, bits: int) -> Tensor:
    """Rows of numbers below 2**bits, packed into bytes; each row is padded with 0 to a byte."""
    if bits == 8:  # a byte each, as they are
        return numbers_BN.to(torch.uint8)
    places = torch.arange(bits, device=numbers_BN.device)
    flags_BM = ((numbers_BN.int()[..., None] >> places) & 1).to(torch.uint8).flatten(1)
    flags_BM = pad(flags_BM, (0, -flags_BM.shape[1] % 8))
    weights = 2 ** torch.arange(8, device=numbers_BN.device, dtype=torch.uint8)
    packed: Tensor = (flags_BM.unflatten(1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)
    return packed


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` numbers of every row, as int64."""
    if bits == 8:
        return packed[:, :count].long()
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    flags_BM = ((packed[..., None] >> places) & 1).flatten(1)[:, : count * bits]
    weights = 2 ** torch.arange(bits, device=packed.device)
    numbers: Tensor = (flags_BM.unflatten(1, (count, bits)).long() * weights).sum(-1)
    return numbers
