"""One process at a time writes a run or sweep directory: it holds a lock, and a note names it.

The lock goes with its process, however that ends, so a directory of a dead process is free. The
lock's file stays, empty; the note is removed. Readers need no lock.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simsplit.errors import RunError
from simsplit.foreign import read_facts, refuse_link
from simsplit.results.directory import make_directory, replace
from simsplit.results.environment import describe_process

LOCK, HOLDER = ".lock", ".lock.json"
PATIENCE_S = 0.5
"""How long a lock is waited for: another process may hold it only to see whether it is free."""


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Open a context in which this process alone writes a directory, which is created.

    Raise RunError if another process writes it.
    """
    from filelock import FileLock, Timeout

    make_directory(path)
    refuse_link(path / LOCK)  # some versions of filelock would truncate what lies behind
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        raise RunError(f"{path} {_describe_holder(path)}") from None
    except (OSError, NotImplementedError) as error:
        raise RunError(f"cannot lock {path}: {getattr(error, 'strerror', '') or error}") from None
    note = path / HOLDER
    try:
        with suppress(OSError):  # a full disk is reported by what the run itself writes
            note.unlink(missing_ok=True)
            holder = {**describe_process(), "command": sys.argv}
            replace(note, json.dumps(holder, indent=2).encode())
        yield
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()


def refuse_locked(path: Path) -> None:
    """Raise RunError if another process writes the directory; nothing is created."""
    if (path / LOCK).exists():
        with lock(path):
            pass


def _describe_holder(path: Path) -> str:
    """Return words that name the process that holds a directory's lock."""
    try:
        holder = read_facts(path / HOLDER, 2**16)
        program, *words = map(str, holder["command"])
        name = Path(program).name
        words = ["simsplit" if name == "__main__.py" else name, *words]
        who = f"process {holder['pid']} on {holder['host']} ({shlex.join(words)})"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return f"is being written by {who}; wait until that has ended, or give another --out"
