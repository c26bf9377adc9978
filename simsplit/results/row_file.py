"""A file of rows, one for each client at rest, to which checkpoints refer.

A checkpoint of many clients would write the same bytes again and again, since few clients change
between two. So it names the places of their rows, with a digest of each. A row that a checkpoint
names is never written over: the client's next row takes another place (see `parties/on_disk.py`).
"""

import hashlib
import os
import shutil
import stat
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from simsplit.errors import RunError
from simsplit.foreign import refuse_link
from simsplit.results.directory import make_folder, writing
from simsplit.results.read_tables import explain_read_errors

ROWS = "clients.rows"
"""The file's name in the folder of checkpoints."""
RESTED = "rested/"
"""Begins the names of a checkpoint's tensors that tell of rows."""
_REFERENCES = ("clients", "slots", "lengths", "sums")


class RowFile:
    """A file of rows of up to `width` bytes each."""

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.width = path, width
        self._handle: int | None = None

    def create(self) -> None:
        """Create an empty file; one that is there loses its name, but keeps its content."""
        with writing(self.path):
            make_folder(self.path.parent)
            refuse_link(self.path)
            self.path.unlink(missing_ok=True)
            self._keep(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))

    def open(self, *, to_write: bool) -> None:
        """Open the file that is there; raise RunError if it is missing or no regular file."""
        refuse_link(self.path)
        flags = os.O_RDWR if to_write else os.O_RDONLY
        with explain_read_errors(self.path):
            # Without O_NONBLOCK a pipe would be waited for.
            self._keep(os.open(self.path, flags | getattr(os, "O_NONBLOCK", 0)))
            if not stat.S_ISREG(os.fstat(self._open_handle).st_mode):
                raise ValueError("it is not a regular file")

    def _keep(self, handle: int) -> None:
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    @property
    def _open_handle(self) -> int:
        assert self._handle is not None, "opened or created before"
        return self._handle

    def write(self, slot: int, row: np.ndarray) -> None:
        """Write a row; raise RunFailedError, with the path, if the disk does not take it."""
        start, left = slot * self.width, row.data
        with writing(self.path):
            # A disk that fills up takes a part first, and refuses the rest.
            while left:
                written = os.pwrite(self._open_handle, left, start)
                start, left = start + written, left[written:]

    def read(self, slot: int, length: int) -> np.ndarray:
        """Read the beginning of a row; raise RunError if it is not there."""
        with explain_read_errors(self.path):
            start, size = slot * self.width, os.fstat(self._open_handle).st_size
            # Checked first: a false length must not take memory.
            if not (slot >= 0 and 0 <= length <= self.width and start + length <= size):
                raise ValueError(f"{length} bytes at {start} are not there")
            row = np.empty(length, np.uint8)
            if os.preadv(self._open_handle, [row.data], start) != length:
                raise ValueError(f"{length} bytes at {start} are not there")
        return row

    def sync(self) -> None:
        """Make all that was written durable, if there is a file."""
        if self._handle is not None:
            with writing(self.path):
                os.fsync(self._handle)


def compute_sum(row: np.ndarray) -> int:
    """Return a digest of a row as a whole number."""
    digest = hashlib.blake2b(row.data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def refuse_damaged(path: Path, client: int, row: np.ndarray, wanted: int) -> None:
    """Raise RunError if a client's row has another digest than the `wanted` one."""
    if compute_sum(row) != wanted:
        raise RunError(f"{path}: the row of client {client} is not what was written")


def check_rows(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise RunError if rows that a checkpoint names are missing or damaged.

    A checkpoint whose clients did not rest on disk names none.
    """
    if f"{RESTED}slots" not in tensors:
        return
    with explain_read_errors(folder / ROWS):
        width = int(tensors[f"{RESTED}width"])
        named = [tensors[f"{RESTED}{name}"].tolist() for name in _REFERENCES]
        rows = sorted(zip(*named, strict=True), key=lambda row: row[1])  # in the file's order
    file = RowFile(folder / ROWS, width)
    if rows:
        file.open(to_write=False)
    for client, slot, length, wanted in rows:
        refuse_damaged(file.path, client, file.read(slot, length), wanted)


def link_rows(folder: Path, target: Path) -> None:
    """Give the rows of a folder of checkpoints a second name in another run's, to be read there.

    A run that writes rows makes a file of its own.
    """
    if not (folder / ROWS).exists():
        return
    refuse_link(folder / ROWS)
    try:
        os.link(folder / ROWS, target / ROWS)
    except OSError:  # another file system, or one without second names
        shutil.copyfile(folder / ROWS, target / ROWS)
