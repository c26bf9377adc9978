"""A process of its own that holds many clients after a step each, and prints what that takes."""

import contextlib
import ctypes
import gc

import torch

from simsplit.assembly import Assembler
from simsplit.bench.overhead import random_data
from simsplit.machine import resident_bytes
from simsplit.parties.calls import OwnState
from simsplit.phases import Phase
from simsplit.scenario import parse


def main(model: str, clients: int) -> None:
    """Print resident bytes, and the bytes of one client's head, tail and optimizer state."""
    torch.set_num_threads(1)
    shape = (3, 32, 32) if model == "resnet18" else (1, 28, 28)
    given = parse(
        {
            "data": {"source": {"kind": "folder", "path": "random"}},
            "model": {"kind": model},
            "clients": {"count": clients, "heads": "per_client"},
            "train": {"batch_size": 4},
        }
    )
    parts = Assembler(
        given, random_data(shape, clients, total=4000), torch.device("cpu")
    ).assemble()
    parts.server.enter(Phase("train", rounds=1), 1.0)
    for client in parts.clients:
        parts.exchange.step(client)
    gc.collect()
    state = parts.pool.ask(0, OwnState())
    owned = sum(tensor.nbytes for tensor in state.values())
    with contextlib.suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    print(resident_bytes(), owned)  # noqa: T201 - the parent reads it
