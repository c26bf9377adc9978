"""Arrays as samples: bytes are images, all other numbers are taken as they are.

A file of arrays (.npz) and arrays that a Python call passes are read by the same code.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from simsplit.data.base import SourceConfig
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.splits import held_out
from simsplit.errors import DataError, listed
from simsplit.seeds import numpy_rng_for

MOST_CLASSES = 1000
"""More than that, and what was given are no classes."""
_NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("X_train", "y_train", "X_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x", "y", "", ""),
    ("X", "y", "", ""),
    ("images", "labels", "", ""),
    ("data", "labels", "", ""),
    ("data", "target", "", ""),
)


def class_names_of(labels: np.ndarray, where: str) -> tuple[str, ...]:
    """The classes of training labels, in order; labels may be numbers, words or booleans."""
    if labels.ndim != 1:
        raise DataError(f"{where}: must be one label per sample, got shape {labels.shape}")
    values = np.unique(_comparable(labels, where))
    if len(values) < 2:
        only = f"'{_name(values[0])}'" if len(values) else "none"
        raise DataError(f"{where}: must have two classes or more, got {only} alone")
    if len(values) > MOST_CLASSES:
        raise DataError(
            f"{where}: has {len(values):,} different values, which are no classes (at most "
            f"{MOST_CLASSES:,}); name another column, or turn numbers into classes first"
        )
    return tuple(map(_name, values))


def numbered(labels: np.ndarray, names: Sequence[str], where: str) -> np.ndarray:
    """Each label as the number of its class; DataError for one that `names` lacks."""
    numbers = {name: number for number, name in enumerate(names)}
    values, places = np.unique(_comparable(labels, where), return_inverse=True)
    words = [_name(value) for value in values]
    if strange := [word for word in words if word not in numbers]:
        raise DataError(
            f"{where}: has the class {listed(strange, 5)}, which no training sample has; "
            "remove these rows, or add some of them to the training data"
        )
    return np.array([numbers[word] for word in words], dtype=np.int64)[places]


def _comparable(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels of one kind, none of them missing."""
    if labels.dtype.kind in "biu":
        return labels
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise DataError(f"{where}: some rows have no label; every row needs one")
        whole = labels.astype(np.int64)
        return whole if (whole == labels).all() else labels
    missing = [value for value in labels if value is None or value != value]  # noqa: PLR0124 - NaN
    if missing:
        raise DataError(f"{where}: {len(missing)} rows have no label; every row needs one")
    return np.array([str(value) for value in labels])


def _name(value: object) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


def samples_from(
    inputs: Any,  # noqa: ANN401 - an array, a tensor, or a list of either
    labels: Any,  # noqa: ANN401
    names: Sequence[str],
    where: str,
) -> Samples:
    """Samples out of arrays or tensors, one row for each; labels are classes by name."""
    x, y = _array(inputs), _array(labels)
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples and {len(y)} labels; one label per sample")
    if not len(x):
        raise DataError(f"{where}: has no samples")
    codes = torch.from_numpy(numbered(y, names, f"{where} (labels)"))
    return Samples(_images(x, where) if x.dtype == np.uint8 else _numbers(x, where), codes)


def _array(given: Any) -> np.ndarray:  # noqa: ANN401
    """An array of whatever can be one."""
    return given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)


def _images(x: np.ndarray, where: str) -> torch.Tensor:
    """N x C x H x W, from arrays with channels first, last or nowhere."""
    if x.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(x[:, None]))
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.ndim == 4 and x.shape[-1] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    raise DataError(
        f"{where}: bytes (uint8) are images, so must be N x H x W, N x H x W x C or N x C x H x W "
        f"with 1 or 3 channels, got {x.shape}; for numbers that are no image use floats"
    )


def _numbers(x: np.ndarray, where: str) -> torch.Tensor:
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise DataError(
            f"{where}: must be an array of numbers, one row per sample, got {x.dtype} of shape "
            f"{x.shape}"
        )
    values = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values.reshape(len(values), -1))).any(1).argmax())
        raise DataError(
            f"{where}: row {bad} has a value that is missing or infinite; fill or drop it"
        )
    return torch.from_numpy(values)


class _Pairs(NamedTuple):
    """What the arrays of a file are called."""

    x: str
    y: str
    x_test: str
    y_test: str


class NpzSource(SourceConfig):
    """Arrays in a .npz file: bytes (uint8) are images, other numbers are taken as they are."""

    kind: Literal["npz"] = "npz"
    path: Path
    """File with x_train, y_train, x_test, y_test; or with x and y, a part of which is then test
    data."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of every class that is test data, where the file has no test arrays."""

    @property
    def modality(self) -> Literal["images", "tables"]:
        """By the type of its numbers."""
        if not self.path.is_file():
            return "images"
        return "images" if self._header(self._pairs().x)[1] == np.uint8 else "tables"

    def describe(self) -> DataInfo | None:
        """From the file's headers and labels; None where there is no file yet."""
        if not self.path.is_file():
            return None
        pairs = self._pairs()
        shape, kind = self._header(pairs.x)
        few = np.zeros((1, *shape[1:]), dtype=kind)
        where = f"data.source.path: {self.path}"
        form = _images(few, where) if kind == np.uint8 else _numbers(few, where)
        with self._opened() as arrays:
            classes = len(class_names_of(arrays[pairs.y], f"{where}, {pairs.y}"))
        return DataInfo(tuple(form.shape[1:]), classes)

    def load(self) -> DataSet:
        """Training and test samples."""
        if not self.path.is_file():
            raise DataError(f"data.source.path: no file {self.path.absolute()}")
        pairs, where = self._pairs(), f"data.source.path: {self.path}"
        with self._opened() as arrays:
            y = arrays[pairs.y]
            names = class_names_of(y, f"{where}, {pairs.y}")
            train = samples_from(arrays[pairs.x], y, names, f"{where}, {pairs.x}")
            if pairs.x_test:
                there = arrays[pairs.x_test], arrays[pairs.y_test]
                test = samples_from(*there, names, f"{where}, {pairs.x_test}")
                return DataSet(self.path.stem, train, test, names)
        return divided(self.path.stem, train, names, self.test_fraction)

    def _opened(self) -> Any:  # noqa: ANN401 - numpy's own type says nothing
        try:
            return np.load(self.path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"data.source.path: {self.path} is no .npz file ({error}); numpy.savez writes one"
            ) from error

    def _pairs(self) -> _Pairs:
        with self._opened() as arrays:
            there = getattr(arrays, "files", [])
        for names in _NAMES:
            if all(name in there for name in names if name):
                return _Pairs(*names)
        raise DataError(
            f"data.source.path: {self.path} has the arrays {', '.join(there) or 'none'}; it needs "
            "x_train, y_train, x_test and y_test, or x and y"
        )

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of an array, without reading it."""
        with zipfile.ZipFile(self.path) as file, file.open(f"{name}.npy") as array:
            version = np.lib.format.read_magic(array)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
            shape, _, kind = read(array)
        return shape, kind


def divided(name: str, samples: Samples, names: tuple[str, ...], fraction: float) -> DataSet:
    """A data set of samples that are not divided yet: the same test rows in every run."""
    labels = samples.labels.numpy()
    kept, out = held_out(labels, fraction, numpy_rng_for(0, "arrays", "test"))
    return DataSet(name, samples.take(kept), samples.take(out), names)
