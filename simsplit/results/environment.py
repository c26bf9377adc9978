"""A run records its machine, versions and commands, so that it can be repeated.

It names the process that writes its directory, so that a killed run can be recognised.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    *("simsplit", "torch", "torchvision", "numpy", "pandas", "scikit-learn"),
    *("flwr", "ray"),
)


def describe_environment(
    device: torch.device,
    plugins: Sequence[Mapping[str, object]] = (),
    model: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return versions, machine, device, thread count, and plugins and own model with digests."""
    return {
        **_describe_session(),
        "resumed": [],
        "process": describe_process(),
        "python": platform.python_version(),
        "packages": {name: find_version(name) for name in _PACKAGES},
        **_describe_machine(device),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "plugins": list(plugins),
        "model": dict(model or {}),
    }


def add_resumption(before: Mapping[str, object], device: torch.device) -> dict[str, object]:
    """Return a run's environment with this process as another that resumes the run.

    It may be on another machine, as on another node of a cluster.
    """
    earlier = before.get("resumed")
    here = {
        **_describe_session(),
        **_describe_machine(device),
        "python": platform.python_version(),
        "packages": {name: find_version(name) for name in ("torch", "numpy")},
    }
    sessions = [*(earlier if isinstance(earlier, list) else []), here]
    return {**before, "resumed": sessions, "process": describe_process()}


def _describe_machine(device: torch.device) -> dict[str, object]:
    """Return the facts of this machine on which figures can depend."""
    gpu = None
    if device.type != "cpu":
        gpu = torch.get_device_module(device).get_device_name(device)
    return {
        "platform": platform.platform(),
        "processor": _find_processor(),
        "processors": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
    }


def _find_processor() -> str | None:
    """Return the processor's name, without commas; None where the system does not give it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return " ".join(next(names, "").replace(",", " ").split()) or None


def _describe_session() -> dict[str, object]:
    """Return the time, the command, and the commit of the working folder."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": _find_commit(),
    }


def _find_commit() -> str | None:
    """Return the working folder's commit, with `-dirty` if files differ from it; None if no git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def find_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is on the path, and not installed
        return getattr(sys.modules.get(package), "__version__", None)


def describe_process() -> dict[str, Any]:
    """Return this process as plain values, by which another process can check that it lives."""
    began, _ = _read_stat(os.getpid())
    return {"pid": os.getpid(), "host": platform.node(), "began": began}


def is_alive(process: Mapping[str, Any] | None) -> bool | None:
    """Return whether a process lives, or None if unknown, such as on another machine."""
    if not process or process.get("host") != platform.node():
        return None
    pid = process.get("pid")
    if not isinstance(pid, int) or pid < 1:
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    began, state = _read_stat(pid)
    # The system reuses process numbers, so the start must agree too; "Z" is a dead process.
    return began == process.get("began") and state != "Z"


def _read_stat(pid: int) -> tuple[int | None, str]:
    """Return a process's start, in ticks of its machine, and its state; nothing without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[19]), fields[0]
    except (OSError, ValueError, IndexError):
        return None, ""
