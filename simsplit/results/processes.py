"""A directory names the process that writes it, so that a killed run can be recognised."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
