"""Which process writes a directory, and whether it still lives: how a killed run is told apart."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """The process that asks, so that another one can tell whether it lives."""
    began, _ = _told(os.getpid())
    return {"pid": os.getpid(), "host": platform.node(), "began": began}


def lives(process: Mapping[str, Any] | None) -> bool | None:
    """Whether it does; None where that cannot be known, as of another machine's."""
    if not process or process.get("host") != platform.node():
        return None
    pid = int(process["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    began, state = _told(pid)
    return began == process.get("began") and state != "Z"  # numbers are given out again


def _told(pid: int) -> tuple[int | None, str]:
    """When a process began, in ticks of its machine, and its state; nothing without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[19]), fields[0]
    except (OSError, ValueError, IndexError):
        return None, ""
