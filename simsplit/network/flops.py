"""How much arithmetic a piece of a network takes, as torch itself counts it."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def count_flops(function: Callable[[], Result]) -> tuple[int, Result]:
    """Floating-point operations of what `function` runs, a multiply-add as two; and its result.

    torch counts matrix products, convolutions and attention; what it does not count (activations,
    normalisation, pooling) is small beside them.
    """
    from torch.utils.flop_counter import FlopCounterMode  # a second to import

    with FlopCounterMode(display=False) as counter:
        result = function()
    return int(counter.get_total_flops()), result
