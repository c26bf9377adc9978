"""A host: what runs inside an actor, and how tensors travel to it and back.

Tensors cross as numpy arrays, which Ray moves through shared memory; they arrive as copies, since
shared memory is read-only and a layer that works in place would tear the process down. Exceptions
come back as values: they keep whose they were, and need not be picklable.
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from simsplit.engine.pool import ClientError, Crew, Job
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.packets import ClientId, Packet


class Recipe(Protocol):
    """What a host builds its clients from."""

    def build(self, numbers: Sequence[ClientId]) -> Crew:
        """These clients, as they are before training."""


@dataclass(frozen=True)
class Failure:
    """What was raised on a host, and where there."""

    error: ClientError | RunFailedError
    trace: str

    def explained(self) -> Exception:
        """The exception, with the host's traceback as its note."""
        self.error.add_note(self.trace)
        return self.error


class Host:
    """Clients of one process, called from another."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        cross_as_numpy()
        self.crew = Crew({})
        self.device = torch.device("cpu")

    def pid(self) -> int:
        """The process that this host is."""
        return os.getpid()

    def build(self, recipe: Recipe, numbers: Sequence[ClientId], device: str) -> None:
        """Hold these clients from now on, and no others."""
        self.device = torch.device(device)
        self.crew = Crew({})  # let the memory of the former ones go first
        self.crew = recipe.build(numbers)

    def call(self, method: str, args: Mapping[ClientId, tuple[Any, ...]]) -> Any:  # noqa: ANN401
        """The clients' answers, or the first failure."""
        return _caught(lambda: self.crew.call(method, {c: self._here(a) for c, a in args.items()}))

    def ask(self, client: ClientId, method: str, *args: Any) -> Any:  # noqa: ANN401 - any answer
        """One client's answer, or its failure."""
        return _caught(lambda: self.crew.ask(client, method, *self._here(args)))

    def whole_round(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """What a client's whole round came to, or its failure."""
        workshop = self.crew.workshop
        assert workshop is not None, "the recipe gives one to every splitfed_v1"
        return _caught(lambda: workshop.train(client, job, trunk))

    def workshop_state(self) -> dict[str, Tensor]:
        """What its workshop remembers."""
        return self.crew.workshop.state() if self.crew.workshop else {}

    def load_workshop(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `workshop_state` gave."""
        if self.crew.workshop is not None:
            self.crew.workshop.load(state)

    def _here(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(on_device(arg, self.device) for arg in args)


def on_device(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - whatever it is
    """A packet's tensors on a device; anything else as it is."""
    if device.type == "cpu" or not isinstance(value, Packet):
        return value
    tensors = tuple(tensor.to(device) for tensor in value.tensors)
    return Packet(value.client, value.leg, value.round, value.step, tensors, value.names)


def cross_as_numpy() -> None:
    """Have Ray send this process's tensors as numpy arrays."""
    import ray.util

    for kind in (Tensor, nn.Parameter):
        ray.util.register_serializer(kind, serializer=_packed, deserializer=_unpacked)


def _packed(tensor: Tensor) -> tuple[np.ndarray, str]:
    """As numpy, which knows no bfloat16, and torch's name of the type."""
    plain = tensor.detach().cpu()
    name = str(plain.dtype).removeprefix("torch.")
    if plain.dtype is torch.bfloat16:
        plain = plain.view(torch.int16)
    return plain.numpy(), name


def _unpacked(packed: tuple[np.ndarray, str]) -> Tensor:
    array, name = packed
    tensor = torch.tensor(array)
    return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


def _caught(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - any answer
    try:
        return call()
    except ClientError as error:
        return Failure(error, traceback.format_exc())
    except SimsplitError as error:
        return Failure(RunFailedError(str(error)), traceback.format_exc())
