"""The only source of randomness: named streams that do not know of each other.

Every draw takes its generator from a seed and a scope (purpose, client, round, step, ...), so a
client's draws are the same whether ten or a hundred others exist, whichever process it lives in and
wherever a run was resumed. Nothing reads or moves the global generators, except inside `isolated`,
which lends them to third-party code (layer initialisation, dropout) and puts them back.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Scope = str | int


def seed_for(seed: int, *scope: Scope) -> int:
    """A 63-bit seed that depends on `seed` and every part of `scope`, stable across platforms."""
    digest = hashlib.blake2b(repr((seed, *scope)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rng_for(seed: int, *scope: Scope) -> torch.Generator:
    """A fresh torch stream (on the CPU) for one purpose.

    >>> torch.rand(1, generator=rng_for(0, "batches", 3, 1)).item() < 1
    True
    """
    return torch.Generator().manual_seed(seed_for(seed, *scope))


def numpy_rng_for(seed: int, *scope: Scope) -> np.random.Generator:
    """The same for code that draws through numpy."""
    return np.random.default_rng(seed_for(seed, *scope))


@contextmanager
def isolated(seed: int, *scope: Scope, device: torch.device | None = None) -> Iterator[None]:
    """Lend the global torch stream to code that insists on it, seeded by scope, then restore it."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would take 200 times as long, and move every GPU's stream for good
        torch.default_generator.manual_seed(seed_for(seed, *scope))
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed_for(seed, *scope))
        yield
