"""A host: what runs inside an actor, and how tensors travel to it and back.

Tensors cross as numpy arrays, which Ray moves through shared memory; they arrive as copies, since
shared memory is read-only and a layer that works in place would tear the process down. Exceptions
come back as values: they keep whose they were, and need not be picklable.
"""

import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.engine.pool import ClientError, InlinePool, Job
from simsplit.errors import ProtocolError, RunFailedError, SimsplitError
from simsplit.machine import resident_bytes
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import Call

Answer = TypeVar("Answer")


class Recipe(Protocol):
    """What a host builds its clients from."""

    @property
    def imports(self) -> Callable[[], object] | None:
        """What a host has to do before it can be sent the recipe, if anything."""

    def build(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Build these clients as they are before training."""


@dataclass(frozen=True)
class Failure:
    """What was raised on a host, and where there."""

    error: ClientError | ProtocolError | RunFailedError
    trace: str

    def with_trace(self) -> Exception:
        """Return the exception, with the host's traceback as its note."""
        self.error.add_note(self.trace)
        return self.error


class Host:
    """Clients of one process, called from another."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        cross_as_numpy()
        self.pool = InlinePool({})
        self.device = torch.device("cpu")
        self.failed: Failure | None = None

    def pid(self) -> int:
        """The process that this host is."""
        return os.getpid()

    def resident_bytes(self) -> int | None:
        """What this host has in memory, wherever it is."""
        return resident_bytes()

    def prepare(self, imports: Callable[[], object]) -> object:
        """Import what the recipe's parts are from: plugins by file are on no path."""
        self.failed = None

        def done() -> None:
            imports()  # what it gives stays here

        return self._answer(done)

    def build(self, recipe: Recipe, numbers: Sequence[ClientId], device: str) -> None:
        """Hold these clients from now on, and no others."""
        self.device, self.failed = torch.device(device), None
        self.pool = InlinePool({})  # let the memory of the former ones go first
        self.pool = recipe.build(numbers)

    def ask_each(self, calls: Mapping[ClientId, Call[object]]) -> object:
        """The clients' answers, or the first failure."""
        return self._answer(lambda: {c: self._ask(c, call) for c, call in calls.items()})

    def ask(self, client: ClientId, call: Call[object]) -> object:
        """One client's answer, or its failure."""
        return self._answer(lambda: self._ask(client, call))

    def tell(self, client: ClientId, call: Call[object]) -> None:
        """As `ask`, where nobody waits: a failure is what the next call is answered with."""
        answer = self.ask(client, call)
        if isinstance(answer, Failure):
            self.failed = answer

    def train_round(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> object:
        """Train a client's whole round, and return its outcome or its failure."""
        workshop = self.pool.workshop
        assert workshop is not None, "the recipe gives one to every splitfed_v1"
        return self._answer(lambda: workshop.train(client, job, trunk))

    def workshop_state(self) -> dict[str, Tensor]:
        """Return what its workshop remembers."""
        return self.pool.workshop_state()

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `workshop_state` returned."""
        self.pool.load_workshop(state)

    def _ask(self, client: ClientId, call: Call[object]) -> object:
        return self.pool.ask(client, call if self.device.type == "cpu" else call.moved(self.device))

    def _answer(self, call: Callable[[], object]) -> object:
        """What a call gives, or a failure: its own, or one that is still to be told."""
        if self.failed is not None:
            return self.failed
        try:
            return call()
        except ClientError as error:
            return Failure(error, traceback.format_exc())
        except SimsplitError as error:
            kind = ProtocolError if isinstance(error, ProtocolError) else RunFailedError
            return Failure(kind(str(error)), traceback.format_exc())


def on_device(value: Answer, device: torch.device) -> Answer:
    """Packets' tensors on a device; anything else as it is."""
    if device.type == "cpu":
        return value
    if isinstance(value, Packet):
        return value.on(device)  # type: ignore[return-value]
    if isinstance(value, tuple) and value and isinstance(value[0], Packet):
        return tuple(packet.on(device) for packet in value)  # type: ignore[return-value]
    return value


def cross_as_numpy() -> None:
    """Have Ray send this process's tensors as numpy arrays."""
    import ray.util

    for kind in (Tensor, nn.Parameter):
        ray.util.register_serializer(kind, serializer=_packed, deserializer=_unpacked)


def _packed(tensor: Tensor) -> tuple[np.ndarray, torch.dtype, torch.Size, tuple[int, ...]]:
    """As bytes in memory's order, since numpy knows neither all types nor all layouts."""
    plain = tensor.detach().cpu()
    if torch.empty_like(plain, device="meta").stride() != plain.stride():
        plain = plain.clone()  # it lies with gaps, or upon itself
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy(), plain.dtype, plain.shape, plain.stride()


def _unpacked(packed: tuple[np.ndarray, torch.dtype, torch.Size, tuple[int, ...]]) -> Tensor:
    """Laid out as it was: other layouts take other kernels, which round otherwise.

    Bytes are images, which are only ever picked from: those of all hosts are one in shared memory.
    """
    array, dtype, shape, stride = packed
    if dtype is not torch.uint8:
        return torch.tensor(array).view(dtype).as_strided(shape, stride)
    with warnings.catch_warnings():  # torch warns of an array that must not be written to
        warnings.simplefilter("ignore")
        return torch.from_numpy(array).as_strided(shape, stride)
