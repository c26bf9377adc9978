"""This module defines a host, which runs inside a Ray actor, and the transport of tensors to it.

Tensors cross as numpy arrays, which Ray moves through shared memory. They arrive as copies, since
shared memory is read-only and a layer that writes in place would crash the process. Exceptions
return as values: so they keep the name of their client, and need not be picklable.
"""

import os
import platform
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.engine.pool import ClientError, InlinePool, Job
from simsplit.errors import PluginError, ProtocolError, RunFailedError, SimsplitError
from simsplit.legs import ClientId
from simsplit.machine import find_device, read_resident_bytes
from simsplit.packets import Packet
from simsplit.parties.calls import Call

Answer = TypeVar("Answer")


class Recipe(Protocol):
    """The description from which a host builds its clients."""

    @property
    def imports(self) -> Callable[[], object] | None:
        """The call that a host must make before it can receive the recipe, or None."""

    def build(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Build these clients in their state before training."""


@dataclass(frozen=True)
class Failure:
    """An exception that was raised on a host, and its traceback."""

    error: ClientError | PluginError | ProtocolError | RunFailedError
    trace: str


class Host:
    """The clients of one process, called from another process."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        register_numpy_transport()
        self.pool = InlinePool({})
        self.device = torch.device("cpu")
        self.failed: Failure | None = None

    def get_pid(self) -> int:
        """Return the number of this host's process."""
        return os.getpid()

    def measure_resident_bytes(self) -> int | None:
        """Return the resident memory of this host's process."""
        return read_resident_bytes()

    def prepare(self, imports: Callable[[], object]) -> object:
        """Import the modules of the recipe's parts; plugins given by file are on no import path."""
        self.failed = None

        def import_only() -> None:
            imports()  # its result need not be picklable, so it is not returned

        return self._answer(import_only)

    def build(self, recipe: Recipe, numbers: Sequence[ClientId], device: str) -> object:
        """Build these clients, which replace those that the host had before; return a failure.

        `device` is cpu, or auto for the accelerator of which a part is reserved for this host.
        """
        self.failed = None
        self.pool = InlinePool({})  # frees the memory of the former clients first
        return self._answer(lambda: self._build(recipe, numbers, device))

    def _build(self, recipe: Recipe, numbers: Sequence[ClientId], device: str) -> None:
        self.device = find_device(device)
        if device == "auto" and self.device.type == "cpu":
            raise RunFailedError(
                "engine.gpus_per_host: a GPU is reserved for each host, and torch sees none on "
                f"{platform.node()}"
            )
        self.pool = recipe.build(numbers)

    def ask_each(self, calls: Mapping[ClientId, Call[object]]) -> object:
        """Return the clients' answers, or the first failure."""
        return self._answer(lambda: {c: self._ask(c, call) for c, call in calls.items()})

    def ask(self, client: ClientId, call: Call[object]) -> object:
        """Return one client's answer, or its failure."""
        return self._answer(lambda: self._ask(client, call))

    def tell(self, client: ClientId, call: Call[object]) -> None:
        """Call a client whose answer nobody waits for; the next call returns a failure of it."""
        answer = self.ask(client, call)
        if isinstance(answer, Failure):
            self.failed = answer

    def train_round(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> object:
        """Train a client's whole round, and return its outcome or its failure."""
        workshop = self.pool.workshop
        assert workshop is not None, "the recipe gives one to every splitfed_v1"
        return self._answer(lambda: workshop.train(client, job, trunk))

    def get_workshop_state(self) -> dict[str, Tensor]:
        """Return the state of the host's workshop."""
        return self.pool.workshop_state()

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `workshop_state` returned."""
        self.pool.load_workshop(state)

    def _ask(self, client: ClientId, call: Call[object]) -> object:
        return self.pool.ask(
            client, call if self.device.type == "cpu" else call.to_device(self.device)
        )

    def _answer(self, call: Callable[[], object]) -> object:
        """Return the call's result, or its failure, or an earlier failure of `tell`."""
        if self.failed is not None:
            return self.failed
        try:
            return call()
        except (ClientError, PluginError) as error:
            return Failure(error, traceback.format_exc())
        except SimsplitError as error:
            kind = ProtocolError if isinstance(error, ProtocolError) else RunFailedError
            return Failure(kind(str(error)), traceback.format_exc())


def move_to_device(value: Answer, device: torch.device) -> Answer:
    """Move the tensors of packets to a device; return any other value unchanged."""
    if device.type == "cpu":
        return value
    if isinstance(value, Packet):
        return value.to_device(device)  # type: ignore[return-value]
    if isinstance(value, tuple) and value and isinstance(value[0], Packet):
        return tuple(packet.to_device(device) for packet in value)  # type: ignore[return-value]
    return value


def register_numpy_transport() -> None:
    """Make Ray send this process's tensors as numpy arrays."""
    import ray.util

    for kind in (Tensor, nn.Parameter):
        ray.util.register_serializer(kind, serializer=_pack, deserializer=_unpack)


def _pack(tensor: Tensor) -> tuple[np.ndarray, torch.dtype, torch.Size, tuple[int, ...]]:
    """Pack a tensor as bytes in memory order, since numpy lacks some dtypes and layouts."""
    plain = tensor.detach().cpu()
    if torch.empty_like(plain, device="meta").stride() != plain.stride():
        plain = plain.clone()  # removes gaps and overlaps
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy(), plain.dtype, plain.shape, plain.stride()


def _unpack(packed: tuple[np.ndarray, torch.dtype, torch.Size, tuple[int, ...]]) -> Tensor:
    """Unpack a tensor with its original layout; other layouts select kernels that round otherwise.

    Tensors of uint8 are images, which are only indexed: they are not copied, so that all hosts
    share one array in shared memory.
    """
    array, dtype, shape, stride = packed
    if dtype is not torch.uint8:
        return torch.tensor(array).view(dtype).as_strided(shape, stride)
    with warnings.catch_warnings():  # torch warns of a read-only array
        warnings.simplefilter("ignore")
        return torch.from_numpy(array).as_strided(shape, stride)
