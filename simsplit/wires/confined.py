"""A folder of others is read through one handle: by plain names, and nothing outside it.

Links, devices and pipes are refused by the system call that opens a file, not by a look before it,
so nobody can exchange a file between the two.
"""

import csv
import errno
import os
import re
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.foreign import strip_controls

MOST_INDEX = 2**30
"""Bytes of a table of packets or samples, at most; it is gone through line by line."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A file's or a folder's name, without a separator, and not beginning with a dot."""
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # to open a pipe would otherwise wait for its writer


class ConfinedFolder:
    """A folder whose files are opened by plain names, below one handle."""

    def __init__(self, handle: int, name: str) -> None:
        self.name = name
        """The folder as messages name it."""
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    @classmethod
    def open(cls, path: Path) -> "ConfinedFolder":
        """Open a folder that a user named; raise RunError if it is none."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {_explain(error)}") from None

    def open_below(self, *names: str) -> "ConfinedFolder":
        """Open a folder below this one; raise RunError for links and for what is no folder."""
        opened = self
        for name in names:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            opened = ConfinedFolder(opened._open_handle(name, flags), f"{opened.name}/{name}")
        return opened

    def has(self, name: str) -> bool:
        """Return whether something of this name lies here."""
        try:
            os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except OSError:
            return False
        return True

    def open_file(self, name: str, most: int) -> int:
        """Open a regular file of at most `most` bytes, and return its handle."""
        handle = self._open_handle(name, os.O_RDONLY | os.O_NOFOLLOW | _NO_WAIT)
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode) and about.st_size <= most:
            return handle
        os.close(handle)
        why = "it is not a regular file"
        if stat.S_ISREG(about.st_mode):
            why = f"it has {about.st_size:,} bytes, more than {most:,}"
        raise RunError(f"cannot read {self.describe(name)}: {why}")

    def read_lines(self, name: str, most: int) -> Iterator[dict[str | None, Any]]:
        """Yield the lines of a CSV file by column, one at a time; `most` bounds its bytes."""
        with (
            self.explain(name),
            os.fdopen(self.open_file(name, most), encoding="utf-8", newline="") as file,
        ):
            lines = csv.DictReader(file)
            try:
                yield from lines
            except (csv.Error, ValueError) as error:
                raise ValueError(f"line {lines.line_num + 1}: {error}") from None

    def read_text(self, name: str, most: int) -> str:
        """Read a small file as UTF-8."""
        with self.explain(name), os.fdopen(self.open_file(name, most), "rb") as file:
            return file.read(most).decode("utf-8")

    @contextmanager
    def explain(self, name: str) -> Iterator[None]:
        """Open a context in which what is wrong with a file becomes a RunError that names it."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.describe(name)}: {_explain(error)}") from None

    def describe(self, name: str) -> str:
        """Return a file's name for messages; it may have come from others."""
        return f"{self.name}/{strip_controls(name)[:100]}"

    def _open_handle(self, name: str, flags: int) -> int:
        if not _PLAIN.fullmatch(name):
            raise RunError(
                f"cannot read {self.describe(name)}: a name has letters, digits, '.', '_' and '-', "
                "and no folder before it"
            )
        try:
            return os.open(name, flags, dir_fd=self._handle)
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.describe(name)}: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        is_link = error.errno == errno.ELOOP
        return "it is a link, and links are not followed" if is_link else error.strerror
    return strip_controls(str(error).splitlines()[0][:300] if str(error) else type(error).__name__)
