"""Whole numbers of any few bits side by side in bytes: how indices and codes cross the wire.

A 12-bit index in an int16 would be counted at 16 bits; here it costs 12.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def width_of(values: int) -> int:
    """How many bits tell this many values apart."""
    return max(1, (values - 1).bit_length())


def pack_bits(numbers_BN: Tensor, bits: int) -> Tensor:
    """Rows of numbers below 2**bits, packed into bytes; each row is padded with 0 to a byte."""
    places = torch.arange(bits, device=numbers_BN.device)
    flags_BM = ((numbers_BN.int()[..., None] >> places) & 1).to(torch.uint8).flatten(1)
    flags_BM = pad(flags_BM, (0, -flags_BM.shape[1] % 8))
    weights = 2 ** torch.arange(8, device=numbers_BN.device, dtype=torch.uint8)
    packed: Tensor = (flags_BM.unflatten(1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)
    return packed


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` numbers of every row, as int64."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    flags_BM = ((packed[..., None] >> places) & 1).flatten(1)[:, : count * bits]
    weights = 2 ** torch.arange(bits, device=packed.device)
    numbers: Tensor = (flags_BM.unflatten(1, (count, bits)).long() * weights).sum(-1)
    return numbers
