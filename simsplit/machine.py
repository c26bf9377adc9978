"""This module asks the machine about its processors, threads, devices and memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from simsplit.errors import ScenarioError

Precision = Literal["fp32", "bf16"]
Autocast = Callable[[], AbstractContextManager[object]]
ACCELERATORS: tuple[str, ...] = ("cuda",)
"""Kinds of devices that `auto` takes, the first that is there."""


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


ALL_THREADS = torch.get_num_threads()
"""The number of threads that torch takes by itself, or that OMP_NUM_THREADS gives it."""


DEVICES = "cpu, cuda, cuda:N, or auto (a GPU if there is one)"
"""The devices that a user may name."""


@contextmanager
def pin_threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads within a block; None leaves it to torch."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def find_device(name: str) -> torch.device:
    """Return the device that a scenario names; raise ScenarioError if it does not exist."""
    if name == "auto":
        name = find_accelerator() or "cpu"
    kind, _, number = name.partition(":")
    numbered = kind in ACCELERATORS and number.isdecimal() and len(number) < 4
    if name not in ("cpu", *ACCELERATORS) and not numbered:
        raise ScenarioError("device", f"got '{name}'; allowed: {DEVICES}")
    device = torch.device(name)
    if device.type != "cpu":
        count = torch.get_device_module(device).device_count()
        if (device.index or 0) >= count:
            raise ScenarioError(
                "device", f"got '{name}', but torch sees {count} GPUs; allowed: {DEVICES}"
            )
    return device


def find_accelerator() -> str | None:
    """Return the kind of accelerator that this machine has; None if it has none."""
    return next(
        (kind for kind in ACCELERATORS if torch.get_device_module(kind).is_available()), None
    )


def lacks_bf16(name: str) -> bool:
    """Return whether a device is a processor that computes bf16 without instructions for it."""
    if name != "cpu" and not (name == "auto" and find_accelerator() is None):
        return False
    supports = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supports is not None and not supports()


def read_resident_bytes() -> int | None:
    """Return the resident bytes of this process, including shared pages."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def read_free_bytes(device: torch.device) -> int:
    """Return the free bytes of the device: of the GPU, or of this machine or its container."""
    if device.type != "cpu":
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    limits = [_read_available(), _read_container_limit()]
    return min(limit for limit in limits if limit is not None) if any(limits) else 2**62


def _read_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
        return int(kib) * 1024
    except (OSError, StopIteration):
        pass
    try:  # not Linux: the free memory is unknown, so take the machine's whole memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _read_container_limit() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        counts = dict(map(str.split, (folder / "memory.stat").read_text("ascii").splitlines()))
        # cached files count as used, but the kernel frees them when memory is needed
        return None if limit == "max" else int(limit) - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None


def autocast_for(precision: Precision, device: torch.device) -> Autocast:
    """Return a function that opens a context for a forward pass."""
    if precision == "fp32":
        return nullcontext
    return partial(torch.autocast, device.type, torch.bfloat16)
