"""Activations of a segment are computed again in the backward pass, instead of kept for it.

A step keeps the inputs of a segment's units, and what is inside of one unit at a time. Units are a
transformer's layers, a network's blocks, or a segment without either as a whole. The second pass
must be the first one to the bit, so it draws the same dropout, and runs on the weights and running
statistics that the first one saw: an asynchronous trunk has moved on in between, adapters of an API
are there for one call only, and statistics must not be updated twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_units(segment: nn.Module) -> nn.Module:
    """Let a segment's units compute their activations again, in place."""
    for unit in list_units(segment):
        # In the instance, not by a wrapping module: names of weights stay the same.
        unit.__dict__["forward"] = MethodType(_run_unit, unit)
    return segment


def list_units(segment: nn.Module) -> list[nn.Module]:
    """Return the parts of a segment that are computed again one at a time."""
    for module in segment.modules():
        if isinstance(module, nn.ModuleList):
            return list(module)
    blocks = [child for child in segment.children() if any(True for _ in child.children())]
    return blocks or [segment]


@contextmanager
def watch_units(network: nn.Module) -> Iterator[list[Callable[[], Any]]]:
    """Open a context that collects the passes of all units that are computed again."""
    passes: list[Callable[[], Any]] = []
    units = [unit for unit in network.modules() if "forward" in unit.__dict__]

    def collect(unit: nn.Module, args: Any, options: Any) -> None:  # noqa: ANN401 - any module's
        passes.append(partial(type(unit).forward, unit, *args, **options))

    handles = [unit.register_forward_pre_hook(collect, with_kwargs=True) for unit in units]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()


def _run_unit(unit: nn.Module, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - any module's
    """Apply a unit; with gradients, keep its inputs alone."""
    if not torch.is_grad_enabled():
        return type(unit).forward(unit, *args, **options)
    return checkpoint(_Passes(unit), *args, use_reentrant=False, **options)


class _Passes:
    """The first pass of a unit, and the same pass again."""

    def __init__(self, unit: nn.Module) -> None:
        """Note the weights by reference, and copy the statistics that the first pass changes."""
        self.forward = partial(type(unit).forward, unit)
        self.is_first = True
        self.parts: list[tuple[nn.Module, Any, Any]] = []
        for part in unit.modules():
            buffers = dict(part._buffers)
            if part.training:  # statistics then change
                buffers = {n: None if each is None else each.clone() for n, each in buffers.items()}
            self.parts.append((part, dict(part._parameters), buffers))

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - any module's
        """Apply the unit, from the second time on as it was the first time."""
        if self.is_first:
            self.is_first = False
            return self.forward(*args, **options)
        with self._put_back():
            return self.forward(*args, **options)

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Open a context in which the unit has the weights and statistics of its first pass."""
        now = [(part, part._parameters, part._buffers) for part, _, _ in self.parts]
        _set(self.parts)
        try:
            yield
        finally:  # torch ends the second pass by an exception, as soon as it has what it needs
            _set(now)


def _set(parts: list[tuple[nn.Module, Any, Any]]) -> None:
    for part, weights, buffers in parts:
        part.__dict__["_parameters"], part.__dict__["_buffers"] = weights, buffers
