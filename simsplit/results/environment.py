"""What a run ran on and with, for whoever has to repeat it."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from simsplit.results.processes import this_process

_PACKAGES = (
    *("simsplit", "torch", "torchvision", "numpy", "pandas", "scikit-learn"),
    *("flwr", "flwr-datasets", "ray"),
)


def describe_environment(
    device: torch.device, plugins: Sequence[Mapping[str, object]] = ()
) -> dict[str, object]:
    """Versions, machine, device and thread count; and which plugins it had, with their digests."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        **_session(),
        "resumed": [],
        "process": this_process(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "device": str(device),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "plugins": list(plugins),
    }


def resumed(before: Mapping[str, object]) -> dict[str, object]:
    """The environment of a run that another command goes on with."""
    earlier = before.get("resumed", [])
    assert isinstance(earlier, list), "as it was written"
    return {**before, "resumed": [*earlier, _session()], "process": this_process()}


def _session() -> dict[str, object]:
    """When, by which command, and from which commit of the working folder."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The working folder's commit, with `-dirty` where files differ from it; None without git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
