"""Autocast as the scenario's `precision` says: none, or bf16 where torch allows it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]
Autocast = Callable[[], AbstractContextManager[object]]


def autocast_for(precision: Precision, device: torch.device) -> Autocast:
    """Return a function that opens a context for a forward pass."""
    if precision == "fp32":
        return nullcontext
    return partial(torch.autocast, device.type, torch.bfloat16)
