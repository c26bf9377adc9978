"""This module is the only source of randomness: named streams that are independent of each other.

Every draw takes its generator from a seed and a scope (purpose, client, round, step, ...). So a
client's draws do not depend on the number of other clients, on the process in which it lives, or on
where a run was resumed. The global generators are neither read nor advanced, except inside
`isolated`, which lends them to third-party code (layer initialisation, dropout) and restores them.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Scope = str | int


def derive_seed(seed: int, *scope: Scope) -> int:
    """Return a 63-bit seed that depends on `seed` and all of `scope`, the same on all platforms."""
    digest = hashlib.blake2b(repr((seed, *scope)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rng_for(seed: int, *scope: Scope, device: "torch.device | None" = None) -> "torch.Generator":
    """Return a fresh torch generator for one purpose, on the CPU unless a device is given.

    >>> torch.rand(1, generator=rng_for(0, "batches", 3, 1)).item() < 1
    True
    """
    return make_generator(device).manual_seed(derive_seed(seed, *scope))


def continue_on(rng: "torch.Generator", device: "torch.device") -> "torch.Generator":
    """Return a generator on a device, which is seeded by the next number of another one."""
    import torch

    seed = int(torch.randint(1 << 62, (), generator=rng))
    return make_generator(device).manual_seed(seed)


def make_generator(device: "torch.device | None") -> "torch.Generator":
    """Make a generator; what is on the device "meta" is drawn on the CPU."""
    import torch  # here, as what prints a finished run draws intervals by numpy alone

    if device is None or device.type in ("cpu", "meta"):
        return torch.Generator()
    return torch.Generator(device)


def numpy_rng_for(seed: int, *scope: Scope) -> np.random.Generator:
    """Return a fresh numpy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, *scope))


@contextmanager
def isolate(seed: int, *scope: Scope, device: "torch.device | None" = None) -> Iterator[None]:
    """Seed the global torch generator by scope within a block, for code that draws from it."""
    import torch

    devices = [] if device is None or device.type in ("cpu", "meta") else [device]
    # torch before 2.12 takes no None; without devices the kind has no effect
    kind = devices[0].type if devices else "cuda"
    with torch.random.fork_rng(devices=devices, device_type=kind):
        # torch.manual_seed takes 200 times as long, and would reseed all GPUs, never restored
        torch.default_generator.manual_seed(derive_seed(seed, *scope))
        for each in devices:
            module = torch.get_device_module(each)
            with module.device(each):
                module.manual_seed(derive_seed(seed, *scope))
        yield
