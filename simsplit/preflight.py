"""How much memory a run will take, said before it starts; what cannot fit is refused.

An estimate from what is known: the images, each owner's weights, gradients and optimizer slots
times the number of owners, and the activations that one training step keeps, measured on a small
batch.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError

GIB = 2**30
RUNTIME = int(0.5 * GIB)
"""What the interpreter, torch and its libraries take, roughly."""
ROOM = 0.9
"""The share of free memory that a run may plan for."""


@dataclass(frozen=True)
class Estimate:
    """Bytes by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of it."""
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
    """Weights, gradients and optimizer slots of modules, with their buffers."""
    return sum(
        sum(p.nbytes * (2 + slots) for p in module.parameters())
        + sum(b.nbytes for b in module.buffers())
        for module in modules
    )


def weights_bytes(modules: Iterable[nn.Module]) -> int:
    """Parameters alone."""
    return sum(p.nbytes for module in modules for p in module.parameters())


def activation_bytes(forward: Callable[[], Tensor]) -> int:
    """What one forward pass keeps for its backward pass."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def free_bytes(device: torch.device) -> int:
    """Memory that is free where the run will live: on the GPU, this machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_available(), _container_limit()]
    return min(limit for limit in limits if limit is not None) if any(limits) else 2**62


def resident_bytes(pid: int | None = None) -> int | None:
    """What a process (this one, by default) has in memory now, shared pages included."""
    try:
        pages = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


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


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
        return int(kib) * 1024
    except (OSError, StopIteration):
        pass
    try:  # not Linux: the machine's whole memory is the best there is to know
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _container_limit() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        counts = dict(map(str.split, (folder / "memory.stat").read_text("ascii").splitlines()))
        # files that were read and can be dropped count as used, but are free for the asking
        return None if limit == "max" else int(limit) - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None
