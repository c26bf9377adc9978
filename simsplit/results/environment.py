"""What a run ran on and with, for whoever has to repeat it."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

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
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "device": str(device),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "plugins": list(plugins),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
