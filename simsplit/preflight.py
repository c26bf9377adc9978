"""This module estimates the memory of a run before it starts, and refuses a run that cannot fit.

The estimate adds the data, the weights, gradients and optimizer slots of each owner times the
number of owners, and the activations that one training step keeps, measured on a small batch.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, UntypedStorage, nn

from simsplit.errors import ScenarioError
from simsplit.machine import read_free_bytes

GIB = 2**30
RUNTIME = int(0.75 * GIB)
"""Bytes that the interpreter, torch and its libraries take, measured on runs that hardly train."""
READING = int(0.25 * GIB)
"""Bytes that transformers and a tokenizer take in addition."""
ROOM = 0.9
"""Share of the free memory that a run may use."""


@dataclass(frozen=True)
class Estimate:
    """Estimated bytes by purpose."""

    parts: Mapping[str, int]
    on_disk: int = 0
    """Bytes on disk of clients that rest there."""

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in largest if nbytes)
        rows = f", and {format_size(self.on_disk)} on disk" if self.on_disk else ""
        return f"{format_size(self.total)} ({listed}){rows}"


def format_size(nbytes: float) -> str:
    """Format a number of bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def count_trained_bytes(modules: Iterable[nn.Module], slots: int) -> int:
    """Return the bytes of modules in training: weights, gradients, optimizer slots and buffers.

    Weights that never learn have neither gradients nor slots.
    """
    return sum(
        sum(p.nbytes * (2 + slots if p.requires_grad else 1) for p in module.parameters())
        + sum(b.nbytes for b in module.buffers())
        for module in modules
    )


def count_learned_bytes(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the parameters that learn."""
    return sum(p.nbytes for module in modules for p in module.parameters() if p.requires_grad)


def count_frozen_bytes(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the parameters that never learn."""
    return sum(p.nbytes for module in modules for p in module.parameters() if not p.requires_grad)


def measure_activation_bytes(forward: Callable[[], Tensor], weights: Iterable[Tensor] = ()) -> int:
    """Run a forward pass and return the bytes that it keeps for its backward pass.

    `weights` are not counted, although they are kept.
    """
    kept: dict[int, UntypedStorage] = {}
    besides = {weight.untyped_storage()._cdata for weight in weights}

    def keep(tensor: Tensor) -> None:
        # By the storage's own place: its data have none on the device "meta". The storages are kept
        # alive, so that no place is used twice. The hook returns None: if
        # it returned the tensor, graph and output would form a cycle that is never freed.
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        forward()
    return sum(storage.nbytes() for place, storage in kept.items() if place not in besides)


def refuse_if_too_large(estimate: Estimate, device: torch.device) -> None:
    """Raise ScenarioError if the estimate exceeds the free memory."""
    free = read_free_bytes(device)
    if estimate.total > ROOM * free:
        where = "the GPU" if device.type != "cpu" else "this machine"
        raise ScenarioError(
            "",
            f"needs about {estimate}; {where} has {format_size(free)} free. Use fewer "
            "clients, heads: shared, a smaller batch or an optimizer with less state",
        )


def refuse_if_no_room(nbytes: int, file: Path) -> None:
    """Raise ScenarioError if clients that rest in a file would not fit on its disk.

    A resumed run's file, which it goes on with, counts as free.
    """
    folder = next(each for each in file.absolute().parents if each.is_dir())
    used = file.stat().st_blocks * 512 if file.is_file() else 0
    free = shutil.disk_usage(folder).free + used
    if nbytes > free:
        raise ScenarioError(
            "engine.rest",
            f"got disk; clients at rest need {nbytes:,} bytes in {file}, and {free:,} are free "
            "there. Give --out on a larger disk, or use fewer clients, a smaller checkpoint.keep "
            "or an optimizer with less state",
        )
