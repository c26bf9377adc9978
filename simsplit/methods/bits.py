"""Codes of few bits for values, and their packing into bytes for the wire.

A 12-bit index in an int16 would count as 16 bits on the wire; packed it counts as 12.
"""

from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import pad

MOST_NORMAL = 6
"""Largest number of bits for normal levels. With 6 the squared error is below a thousandth of the
values' variance, and computing the levels for more bits takes a second."""


def count_bits(values: int) -> int:
    """Return the number of bits that distinguish this many values."""
    return max(1, (values - 1).bit_length())


def quantise_even(x_BD: Tensor, bits: int, noise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Round each row's values to 2**bits even levels over the row's range.

    `noise` (0 to 1) is added before rounding down. Return the codes, and each row's minimum and
    step size, B x 2.
    """
    low_B1, high_B1 = x_BD.amin(1, keepdim=True), x_BD.amax(1, keepdim=True)
    top = 2**bits - 1
    # Halved before the subtraction, since a range as wide as float32 allows would overflow.
    step_B1 = ((high_B1 / 2 - low_B1 / 2) / top * 2).clamp_min(torch.finfo(torch.float32).tiny)
    codes_BD = (x_BD - low_B1) / step_B1
    codes_BD += noise
    return codes_BD.floor_().clamp_(0, top), torch.cat([low_B1, step_B1], 1)


def dequantise_even(codes_BD: Tensor, range_B2: Tensor) -> Tensor:
    """Return the values that the codes of even levels represent."""
    return range_B2[:, :1] + codes_BD * range_B2[:, 1:]


@cache
def compute_normal_levels(bits: int) -> Tensor:
    """Compute the 2**bits levels with the least squared error for a standard normal value.

    Each level is the mean of the values nearest to it (Max 1960, Lloyd 1982).
    """
    # Start near the optimum: many optimal levels are as dense as a normal of variance 3.
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


def quantise_normal(x_BD: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Round each row's values, divided by their root mean square, to 2**bits normal levels.

    Return the codes and a scale for each row, B x 1. The scale makes the inner product of the row
    and its decoded values equal to the row's squared norm (EDEN's unbiased scale).
    """
    tiny = torch.finfo(torch.float32).tiny
    # Divided by the largest value first, since the squares of large values would overflow.
    top_B1 = x_BD.abs().amax(1, keepdim=True).clamp_min(tiny)
    x_BD = x_BD / top_B1
    size_B1 = x_BD.square().mean(1, keepdim=True).sqrt().clamp_min(tiny)
    x_BD = x_BD / size_B1
    levels = compute_normal_levels(bits).to(x_BD.device)
    codes_BD = torch.bucketize(x_BD, (levels[1:] + levels[:-1]) / 2)
    inner_B1 = (x_BD * levels[codes_BD]).sum(1, keepdim=True).clamp_min(tiny)
    scale_B1 = x_BD.square().sum(1, keepdim=True) / inner_B1 * size_B1 * top_B1
    return codes_BD, scale_B1


def dequantise_normal(codes_BD: Tensor, scale_B1: Tensor, bits: int) -> Tensor:
    """Return the values that the codes of normal levels represent."""
    return compute_normal_levels(bits).to(codes_BD.device)[codes_BD] * scale_B1


def count_packed(count: int, bits: int) -> int:
    """Return the bytes into which a row of `count` numbers is packed."""
    return -(-count * bits // 8)


def pack_bits(numbers_BN: Tensor, bits: int) -> Tensor:
    """Pack rows of numbers below 2**bits into bytes; each row is padded with 0 to a whole byte."""
    if bits == 8:
        return numbers_BN.to(torch.uint8)
    places = torch.arange(bits, device=numbers_BN.device)
    flags_BM = ((numbers_BN.int()[..., None] >> places) & 1).to(torch.uint8).flatten(1)
    flags_BM = pad(flags_BM, (0, -flags_BM.shape[1] % 8))
    weights = 2 ** torch.arange(8, device=numbers_BN.device, dtype=torch.uint8)
    packed: Tensor = (flags_BM.unflatten(1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)
    return packed


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` numbers of every row, as int64."""
    if bits == 8:
        return packed[:, :count].long()
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    flags_BM = ((packed[..., None] >> places) & 1).flatten(1)[:, : count * bits]
    weights = 2 ** torch.arange(bits, device=packed.device)
    numbers: Tensor = (flags_BM.unflatten(1, (count, bits)).long() * weights).sum(-1)
    return numbers
