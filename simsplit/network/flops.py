"""This module counts the arithmetic of a piece of a network with torch's own counter."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def count_flops(function: Callable[[], Result]) -> tuple[int, Result]:
    """Run `function`; return its floating-point operations (a multiply-add is two) and its result.

    torch counts matrix products, convolutions and attention; the operations that it does not count
    (activations, normalisation, pooling) are few in comparison.
    """
    from torch.utils.flop_counter import FlopCounterMode  # its import takes a second

    with FlopCounterMode(display=False) as counter:
        result = function()
    return int(counter.get_total_flops()), result
