"""This module estimates the memory of a run before it starts, and refuses a run that cannot fit.

The estimate adds the data, the weights, gradients and optimizer slots of each owner times the
number of owners, and the activations that one training step keeps, measured on a small batch.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, UntypedStorage, nn

from simsplit.errors import ScenarioError
from simsplit.machine import read_free_bytes
from simsplit.models.recomputing import watch_units
from simsplit.sizes import format_size

GIB = 2**30
RUNTIME = GIB
"""Bytes that the interpreter, torch and its libraries take: 925 to 1,055 MiB were measured on runs
that hardly train."""
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


def count_trained_bytes(modules: Iterable[nn.Module], slots: int) -> int:
    """Return the bytes of modules in training: weights, gradients, optimizer slots and buffers.

    Weights that never learn have neither gradients nor slots.
    """
    counted = nn.ModuleList(modules)  # which lists what modules have in common once
    weights = sum(p.nbytes * (2 + slots if p.requires_grad else 1) for p in counted.parameters())
    return weights + sum(b.nbytes for b in counted.buffers())


def count_learned_bytes(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the parameters that learn."""
    return sum(p.nbytes for p in nn.ModuleList(modules).parameters() if p.requires_grad)


def count_frozen_bytes(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the parameters that never learn."""
    return sum(p.nbytes for p in nn.ModuleList(modules).parameters() if not p.requires_grad)


class KeptTensors:
    """What passes keep for their backward passes, by the part of a step that is running.

    Weights are not counted, although they are kept. Units that are computed again add what is
    inside of the largest one: a backward pass has one at a time.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        self.part = ""
        self._weights = {_get_place(weight) for weight in weights}
        # By the storage's own place: its data have none on the device "meta". The storages are
        # kept alive, so that no place is used twice.
        self._kept: dict[str, dict[int, UntypedStorage]] = {}
        self._again: dict[str, int] = {}

    @contextmanager
    def watch(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        """Open a context whose passes count; `modules` are those of each part."""
        with ExitStack() as stack:
            units = {part: stack.enter_context(watch_units(each)) for part, each in modules.items()}
            with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
                yield
        for part, passes in units.items():
            self._kept.setdefault(part, {})
            self._again[part] = max((self._count_again(run) for run in list(passes)), default=0)

    def count(self, parts: Iterable[str]) -> int:
        """Count the bytes of some parts together; what several keep is counted once."""
        own = list(parts)
        storages = {place: each for part in own for place, each in self._kept[part].items()}
        again = max((self._again[part] for part in own), default=0)
        return sum(each.nbytes() for each in storages.values()) + again

    def _keep(self, tensor: Tensor) -> Tensor:
        if (place := _get_place(tensor)) not in self._weights:
            self._kept.setdefault(self.part, {})[place] = tensor.untyped_storage()
        return tensor.detach()  # the tensor itself would form a cycle with its graph

    def _count_again(self, run: Callable[[], object]) -> int:
        inside = KeptTensors()
        inside._weights = self._weights
        with inside.watch({"": nn.Module()}):
            run()
        return inside.count([""])


def _get_place(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


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
