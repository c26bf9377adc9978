"""Arrays of others are read here, rows at a time: numpy, torch, or files that hold no code.

Files are mapped or read by parts, so that an export larger than the memory can be transcribed.
"""

import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import RunError, format_list, suggest
from simsplit.wires.confined import ConfinedFolder
from simsplit.wires.tensor_file import TensorFile

PICKLED = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Endings of files that are read by unpickling, which can run code."""
MOST_UNPACKED = 2**32
"""Bytes of an array in a packed file, at most: it is read whole."""
_DAMAGED = (zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ArrayRows:
    """An array with a row for each sample, of which rows are read."""

    shape: tuple[int, ...]
    is_floating: bool
    read: Callable[[slice], Tensor]

    def __len__(self) -> int:
        return self.shape[0]


def open_array(value: Any, field: str) -> ArrayRows:  # noqa: ANN401 - an array of any library
    """Return the rows of an array, or of the array in a file; raise RunError with the field."""
    if isinstance(value, str | Path):
        rows = _open_file(str(value), field)
    elif isinstance(value, Tensor):
        rows = ArrayRows(tuple(value.shape), value.is_floating_point(), value.__getitem__)
    else:
        rows = _wrap_numpy(np.asarray(value), field)
    if not rows.shape:
        raise RunError(f"{field}: needs a row for each sample, got a single number")
    return rows


def _open_file(text: str, field: str) -> ArrayRows:
    """Open `FILE` or `FILE:NAME`; what would be unpickled is refused."""
    name = ""
    with suppress(OSError):  # a name may be longer than any file's
        if not Path(text).exists() and ":" in text:
            text, _, name = text.rpartition(":")
    path = Path(text)
    if path.suffix in PICKLED:
        raise RunError(
            f"{field}: {path} would be unpickled, which can run code of whoever wrote it. Load it "
            "where you trust it, and save the tensor with safetensors.torch.save_file or numpy.save"
        )
    if path.suffix == ".safetensors":
        return _open_safetensors(path, name, field)
    if path.suffix not in (".npy", ".npz"):
        raise RunError(f"{field}: {path} must end with .npy, .npz or .safetensors")
    try:
        opened = _load(path, name, field)
    except (*_DAMAGED, OSError, ValueError, EOFError, SyntaxError, MemoryError) as error:
        why = getattr(error, "strerror", None) or f"{error}".partition("\n")[0]
        raise RunError(f"{field}: cannot read {path}: {why}") from None
    return _wrap_numpy(opened, field)


def _load(path: Path, name: str, field: str) -> "np.ndarray[Any, Any]":
    """Map an array's file, or read one array of a packed file, which may unpack to any size."""
    opened = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(opened, np.ndarray):
        return opened
    with opened, zipfile.ZipFile(path) as members:  # whatever the file's name is
        name = _choose(list(opened.files), name, path, field)
        own = (each for each in members.infolist() if each.filename.removesuffix(".npy") == name)
        size = max(each.file_size for each in own)
        if size > MOST_UNPACKED:
            raise ValueError(
                f"its array '{name}' unpacks to {size:,} bytes, more than {MOST_UNPACKED:,}; "
                "save it with numpy.save, whose files are read in parts"
            )
        array = opened[name]
    if not isinstance(array, np.ndarray):  # any bytes may be packed
        raise ValueError(f"its '{name}' is no array")  # noqa: TRY004 - said of the file
    return array


def _open_safetensors(path: Path, name: str, field: str) -> ArrayRows:
    file = TensorFile(ConfinedFolder.open(path.parent), path.name)
    chosen = _choose(list(file.tensors), name, path, field)
    stored = file.tensors[chosen]

    def read(rows: slice) -> Tensor:
        return file.read(chosen, rows.start, rows.stop - rows.start)

    return ArrayRows(stored.shape, stored.dtype.is_floating_point, read)


def _choose(names: list[str], name: str, path: Path, field: str) -> str:
    """Return the array that is meant in a file that has several."""
    if name in names or (not name and len(names) == 1):
        return name or names[0]
    hint = suggest(name, names) if name else ""
    every = format_list(names) or "none"
    raise RunError(f"{field}: name one array of {path} as FILE:NAME{hint}; it has: {every}")


def _wrap_numpy(array: "np.ndarray[Any, Any]", field: str) -> ArrayRows:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise RunError(f"{field}: must hold numbers, got {array.dtype}")
    native = array.dtype.newbyteorder("=")
    kinds = {"u": np.dtype(np.uint8 if native.itemsize == 1 else np.int64)}
    dtype = kinds.get(native.kind, native)

    def read(rows: slice) -> Tensor:
        return torch.from_numpy(np.array(array[rows], dtype=dtype))

    return ArrayRows(array.shape, array.dtype.kind == "f", read)
