"""How much memory a run will take, said before it starts; what cannot fit is refused.

An estimate from what is known: the images, each owner's weights, gradients and optimizer slots
times the number of owners, and the activations that one training step keeps, measured on a small
batch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage, nn

from simsplit.errors import ScenarioError
from simsplit.machine import free_bytes

GIB = 2**30
RUNTIME = int(0.75 * GIB)
"""What the interpreter, torch and its libraries take, roughly: read off runs that hardly train."""
READING = int(0.25 * GIB)
"""What transformers and a tokenizer take besides."""
ROOM = 0.9
"""The share of free memory that a run may plan for."""


@dataclass(frozen=True)
class Estimate:
    """Bytes by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in largest if nbytes)
        return f"{size(self.total)} ({told})"


def size(nbytes: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def trained_bytes(modules: Iterable[nn.Module], slots: int) -> int:
    """Weights, gradients and optimizer slots of modules, with their buffers.

    Of weights that never learn there are neither gradients nor slots.
    """
    return sum(
        sum(p.nbytes * (2 + slots if p.requires_grad else 1) for p in module.parameters())
        + sum(b.nbytes for b in module.buffers())
        for module in modules
    )


def learned_bytes(modules: Iterable[nn.Module]) -> int:
    """Parameters that learn, alone."""
    return sum(p.nbytes for module in modules for p in module.parameters() if p.requires_grad)


def activation_bytes(forward: Callable[[], Tensor]) -> int:
    """What one forward pass keeps for its backward pass."""
    kept: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> None:
        # Storages are kept here, so that no address is used twice. The graph gets nothing to keep:
        # a hook that returned the tensor would make a cycle of graph and output, never freed.
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


def refuse_if_too_large(estimate: Estimate, device: torch.device) -> None:
    """ScenarioError where the estimate exceeds the free memory."""
    free = free_bytes(device)
    if estimate.total > ROOM * free:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise ScenarioError(
            "",
            f"needs about {estimate}; {where} has {size(free)} free. Fewer clients, heads: shared, "
            "a smaller batch or an optimizer with less state would help",
        )
