"""An exception that no guarded hook has raised is traced to the plugin's file that it came through.

So a plugin's call of `sys.exit`, as of a script that was made one, ends no run with exit code 0.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from simsplit.errors import Fault, PluginError, SimsplitError

PASSED: Final = (SimsplitError, MemoryError, torch.OutOfMemoryError)
"""Exceptions that are not a plugin's fault."""
FAILURES: Final = (Exception, SystemExit)
"""Exceptions that are; a user's Ctrl-C is none."""
_files: dict[str, str] = {}
"""By file or, of a package, by folder: the plugin that was loaded from it."""


def note_file(plugin: str, file: Path) -> None:
    """Note the file from which a plugin was loaded."""
    _files[str(file.parent if file.name == "__init__.py" else file)] = plugin


@contextmanager
def blame_plugins() -> Iterator[None]:
    """Open a context that raises PluginError for an exception that came through a plugin's file."""
    try:
        yield
    except PASSED:
        raise
    except FAILURES as error:
        if (fault := find_fault(error)) is None:
            raise
        raise PluginError(fault) from error


def find_fault(error: BaseException) -> Fault | None:
    """Return the fault of the plugin through whose file an exception came; None if it is none's."""
    frames = [
        (plugin, *place)
        for place in traceback.walk_tb(error.__traceback__)
        if (plugin := _find_plugin(place[0].f_code.co_filename)) is not None
    ]
    if not frames:
        return None
    (plugin, called, _), (_, last, line) = frames[0], frames[-1]
    *above, hook = called.f_code.co_qualname.split(".")
    return Fault(
        plugin=plugin,
        part="class" if above else "function",
        name=above[-1] if above else hook,
        hook=hook,
        expected="a result",
        came=f"{type(error).__name__}: {error}",
        file=last.f_code.co_filename,
        line=line,
    )


def _find_plugin(file: str) -> str | None:
    for known, plugin in _files.items():
        if file == known or file.startswith(known + os.sep):
            return plugin
    return None
