"""Tensors of a transcript are read from safetensors files part by part, and checked before.

A header of others may claim any size. So each claim is held against the file before memory is
taken, and only the wanted rows are read: no file is mapped, and one that is cut while it is read is
an error instead of a signal that ends the process.
"""

import json
import math
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from simsplit.wires.confined import ConfinedFolder

MOST_FILE = 64 * 2**30
"""Bytes of a file of tensors, at most; one is never read whole."""
MOST_HEADER = 16 * 2**20
"""Bytes of a file's header, at most."""
MOST_TENSOR = 512 * 2**20
"""Bytes of a tensor that is read at once, at most."""
MOST_AXES = 8
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of tensors that may cross, by their names in the format."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Stored(NamedTuple):
    """One tensor of a file, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """The place of its first byte in the file."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """A safetensors file, of which rows are read."""

    def __init__(self, folder: ConfinedFolder, name: str) -> None:
        self.folder, self.name = folder, name
        self._handle = folder.open_file(name, MOST_FILE)
        weakref.finalize(self, os.close, self._handle)
        with folder.explain(name):
            self.tensors = self._read_header()

    def count_rows(self, name: str) -> int:
        """Count the rows of a tensor, without reading it."""
        shape = self.tensors[name].shape if name in self.tensors else ()
        return shape[0] if shape else 0

    def read(self, name: str, first: int | None = None, rows: int | None = None) -> Tensor:
        """Read a tensor, or `rows` of its rows from `first` on, into memory of its own."""
        with self.folder.explain(self.name):
            stored = self._find(name, first, rows)
            if stored.nbytes > MOST_TENSOR:
                raise ValueError(
                    f"tensor '{name}' has {stored.nbytes:,} bytes to read at once, more than "
                    f"{MOST_TENSOR:,}; name fewer rows of it in each packet"
                )
            return self._read_values(name, stored)

    def measure(self, name: str, rows: int | None = None) -> int:
        """Return the bytes of a tensor, or of `rows` of its rows, without reading it."""
        with self.folder.explain(self.name):
            return self._find(name, 0, rows).nbytes

    def _find(self, name: str, first: int | None, rows: int | None) -> Stored:
        """Return where a tensor, or a part of it, lies; raise ValueError if it has fewer rows."""
        if name not in self.tensors:
            raise ValueError(f"it has no tensor '{name[:100]}'")
        stored = self.tensors[name]
        if first is None or rows is None:
            return stored
        total = stored.shape[0] if stored.shape else 0
        if first + rows > total:
            raise ValueError(f"tensor '{name}' has {total:,} rows, not {first + rows:,}")
        row = stored.nbytes // total if total else 0
        return Stored(stored.dtype, (rows, *stored.shape[1:]), stored.start + first * row)

    def _read_values(self, name: str, stored: Stored) -> Tensor:
        if stored.nbytes == 0:
            return torch.empty(stored.shape, dtype=stored.dtype)
        values = bytearray(self._read_at(stored.start, stored.nbytes))
        tensor = torch.frombuffer(values, dtype=torch.uint8)
        if stored.dtype is torch.bool and bool((tensor > 1).any()):
            raise ValueError(f"tensor '{name}' has truth values other than 0 and 1")
        return tensor.view(stored.dtype).view(stored.shape)

    def _read_header(self) -> dict[str, Stored]:
        size = os.fstat(self._handle).st_size
        length = int.from_bytes(self._read_at(0, 8), "little")
        if length > min(MOST_HEADER, size - 8):
            raise ValueError(f"its header claims {length:,} bytes; the file has {size:,}")
        try:
            header = json.loads(self._read_at(8, length).decode("utf-8"))
        except RecursionError:
            raise ValueError("its header is nested too deeply") from None
        if not isinstance(header, dict):
            raise ValueError("its header is no mapping")  # noqa: TRY004 - what is read is wrong
        header.pop("__metadata__", None)
        start = 8 + length
        return {name: _parse_entry(name, entry, start, size) for name, entry in header.items()}

    def _read_at(self, start: int, length: int) -> bytes:
        parts, left = [], length
        while left:
            part = os.pread(self._handle, min(left, 2**24), start + length - left)
            if not part:
                raise ValueError(f"{length:,} bytes at {start:,} are not there")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are finite in float32, in which they are used."""
    return not tensor.is_floating_point() or bool(tensor.float().isfinite().all())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a new file of tensors, which are in the processor's memory, without copies of them.

    Python's lock is free while the disk is waited for, so a loop in another thread goes on.
    """
    header, start = dict[str, object](), 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        shape, dtype = list(tensor.shape), _NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.nbytes:
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def _parse_entry(name: str, entry: Any, start: int, size: int) -> Stored:  # noqa: ANN401 - JSON
    """Return what a header says of a tensor; raise ValueError unless the file can have it."""
    claimed = entry.get("dtype") if isinstance(entry, dict) else entry
    if not isinstance(claimed, str) or claimed not in DTYPES:
        raise ValueError(
            f"tensor '{name[:100]}' has type {str(claimed)[:40]}; allowed: {', '.join(DTYPES)}"
        )
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_counts(shape) or len(shape) > MOST_AXES:
        raise ValueError(f"tensor '{name[:100]}' has no shape of at most {MOST_AXES} sizes")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor '{name[:100]}' has no place in the file")
    stored = Stored(DTYPES[claimed], tuple(shape), start + offsets[0])
    if stored.nbytes != offsets[1] - offsets[0] or stored.start + stored.nbytes > size:
        raise ValueError(f"tensor '{name[:100]}' of shape {shape} does not fit its place")
    return stored


def _are_counts(values: Any) -> TypeGuard[list[int]]:  # noqa: ANN401 - JSON
    """Return whether values of JSON are a list of sizes; a truth value is none."""
    return isinstance(values, list) and all(
        type(each) is int and 0 <= each < 2**48 for each in values
    )
