"""What `simsplit doctor` finds: versions, machine, caches, and packages that features lack.

Packages are looked up and not imported, so that the answer comes at once, and also where an import
fails. The GPU's driver is asked instead of torch.
"""

import os
import platform
import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simsplit.caching import get_cache_folder
from simsplit.errors import install_command
from simsplit.sizes import format_size

_PACKAGES = ("simsplit", "torch", "torchvision", "transformers", "ray", "flwr", "numpy", "pandas")
FEATURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "adapters of language models (model.lora)": ("text", ("peft",)),
    "deployments (serve, join)": ("deploy", ("grpc", "cryptography")),
    "alignment of parties' ids (data.source.align)": ("psi", ("private_set_intersection",)),
    "searches (sweep.optuna)": ("search", ("optuna",)),
    "LPIPS of recovered images": ("lpips", ("lpips",)),
    "a second accountant of privacy": ("dp", ("dp_accounting",)),
    "CodeBLEU of texts": ("code", ("codebleu",)),
    "TensorBoard (--track tensorboard)": ("tensorboard", ("tensorboard",)),
    "MLflow (--track mlflow)": ("mlflow", ("mlflow",)),
    "Weights & Biases (--track wandb)": ("wandb", ("wandb",)),
}
"""Features that need an extra: its name, and the modules that it brings."""
_NEXT = "\n    "
"""Where a command stands that does not fit beside its feature: it is not broken, to be copied."""
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "RAY_ADDRESS")


def examine() -> dict[str, Any]:
    """Return what this machine has and lacks, as plain values."""
    home = os.environ.get("HF_HOME")
    hub = Path(home) if home else Path.home() / ".cache" / "huggingface"
    return {
        "packages": {"python": platform.python_version()} | {n: _find(n) for n in _PACKAGES},
        "system": platform.platform(),
        "processors": _count_processors(),
        "memory_free_bytes": _read_memory("MemAvailable"),
        "memory_bytes": _read_memory("MemTotal"),
        "disk_free_bytes": shutil.disk_usage(Path.cwd()).free,
        "gpus": _list_gpus(),
        "cache": str(get_cache_folder()),
        "cache_bytes": _measure(get_cache_folder()),
        "hub_cache": str(hub),
        "hub_cache_bytes": _measure(hub),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "missing": {
            feature: install_command(extra)
            for feature, (extra, modules) in FEATURES.items()
            if any(find_spec(module) is None for module in modules)
        },
    }


def format_examination(facts: Mapping[str, Any]) -> str:
    """Format what `examine` returned as a screen to paste into an issue."""
    versions = (f"{name} {number or 'missing'}" for name, number in facts["packages"].items())
    lines = {
        "versions": ", ".join(versions),
        "system": f"{facts['system']}, {facts['processors']} processors",
        "memory": f"{_size(facts['memory_free_bytes'])} free of {_size(facts['memory_bytes'])}",
        "disk": f"{_size(facts['disk_free_bytes'])} free here",
        "GPUs": ", ".join(facts["gpus"]) or "none",
        "cache": f"{facts['cache']} ({_size(facts['cache_bytes'])})",
        "hub": f"{facts['hub_cache']} ({_size(facts['hub_cache_bytes'])})",
        "variables": ", ".join(f"{n}={value}" for n, value in facts["variables"].items()) or "none",
    }
    width = min(80, shutil.get_terminal_size().columns)
    shown = [
        textwrap.fill(f"{n:<11}{text}", width, subsequent_indent=" " * 11, break_on_hyphens=False)
        for n, text in lines.items()
    ]
    missing = [
        f"  {feature}:{' ' if len(feature + command) + 4 <= width else _NEXT}{command}"
        for feature, command in facts["missing"].items()
    ]
    return "\n".join([*shown, f"missing    {'' if missing else 'nothing'}".rstrip(), *missing])


def _count_processors() -> int | None:
    """Return the processors that this process may use; the module `machine` imports torch."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if affinity is None else len(affinity(0))


def _find(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_size(nbytes)


def _read_memory(name: str) -> int | None:
    """Return a line of Linux's record of memory, in bytes; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
    except (OSError, StopIteration):
        return None


def _measure(folder: Path) -> int:
    """Return the bytes of a folder's files; 0 without one."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files)


def _list_gpus() -> list[str]:
    """List the GPUs that the driver's own tool names; none without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
