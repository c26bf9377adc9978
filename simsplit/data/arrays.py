"""This module turns arrays into samples: uint8 arrays are images, other numbers are features.

Features are not scaled. A .npz file and arrays passed from Python are read by the same code.
"""

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from simsplit.data.samples import DataInfo, DataSet, Samples, SplitSizes
from simsplit.data.source_config import SourceConfig
from simsplit.data.splits import hold_out
from simsplit.errors import DataError, format_list
from simsplit.machine import read_free_bytes
from simsplit.seeds import numpy_rng_for

MOST_CLASSES = 1000
"""Labels with more different values than this are not classes."""
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


def find_class_names(labels: np.ndarray, where: str) -> tuple[str, ...]:
    """Return the names of the classes in training labels (numbers, strings or booleans), sorted."""
    if labels.ndim != 1:
        raise DataError(f"{where}: must be one label per sample, got shape {labels.shape}")
    values = np.unique(_make_comparable(labels, where))
    if len(values) < 2:
        only = f"'{_name_class(values[0])}' alone" if len(values) else "none"
        raise DataError(f"{where}: must have two classes or more, got {only}")
    if len(values) > MOST_CLASSES:
        raise DataError(
            f"{where}: must have at most {MOST_CLASSES:,} classes, got {len(values):,} different "
            "values; name another column, or turn numbers into classes first"
        )
    return tuple(map(_name_class, values))


def number_labels(labels: np.ndarray, names: Sequence[str], where: str) -> np.ndarray:
    """Return each label as the number of its class; raise DataError for a label not in `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    values, places = np.unique(_make_comparable(labels, where), return_inverse=True)
    words = [_name_class(value) for value in values]
    if strange := [word for word in words if word not in numbers]:
        raise DataError(
            f"{where}: has the class {format_list(strange, 5)}, which no training sample has; "
            "remove these rows, or add some of them to the training data"
        )
    return np.array([numbers[word] for word in words], dtype=np.int64)[places]


def _make_comparable(labels: np.ndarray, where: str) -> np.ndarray:
    """Return labels of one type that sort and compare equal; raise DataError if one is missing."""
    if labels.dtype.kind in "biu":
        return labels
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise DataError(f"{where}: some rows have no label; every row needs one")
        # pandas turns a column of whole numbers with gaps into floats: 1.0 is class 1
        whole = labels.astype(np.int64)
        return whole if (whole == labels).all() else labels
    missing = [value for value in labels if value is None or value != value]  # noqa: PLR0124 - NaN
    if missing:
        raise DataError(f"{where}: {len(missing)} rows have no label; every row needs one")
    # values of several types do not sort: compare them as strings
    return np.array([str(value) for value in labels])


def _name_class(value: object) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


def make_samples(
    inputs: Any,  # noqa: ANN401 - an array, a tensor, or a list of either
    labels: Any,  # noqa: ANN401
    names: Sequence[str],
    where: str,
) -> Samples:
    """Make samples of arrays or tensors, one row each; each label is the name of a class."""
    x, y = to_array(inputs), to_array(labels)
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples and {len(y)} labels; one label per sample")
    if not len(x):
        raise DataError(f"{where}: has no samples")
    codes = torch.from_numpy(number_labels(y, names, f"{where} (labels)"))
    return Samples(_to_images(x, where) if x.dtype == np.uint8 else _to_features(x, where), codes)


def to_array(given: Any) -> np.ndarray:  # noqa: ANN401
    """Convert a tensor, a list or an array to an array."""
    return given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)


def _to_images(x: np.ndarray, where: str) -> torch.Tensor:
    """Return images as N x C x H x W, from arrays with channels first, channels last or none."""
    if x.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(x[:, None]))
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.ndim == 4 and x.shape[-1] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    raise DataError(
        f"{where}: uint8 arrays are images and must be N x H x W, N x H x W x C or N x C x H x W "
        f"with 1 or 3 channels, got {x.shape}; use floats for numbers that are not an image"
    )


def _to_features(x: np.ndarray, where: str) -> torch.Tensor:
    """Return features as float32; raise DataError unless all are finite numbers."""
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


class _ArrayNames(NamedTuple):
    """The names of a file's arrays; test arrays have empty names where the file has none."""

    x: str
    y: str
    x_test: str
    y_test: str


class NpzSource(SourceConfig):
    """Arrays in a .npz file: uint8 arrays are images, other numbers are features, not scaled."""

    kind: Literal["npz"] = "npz"
    path: Path
    """File with the arrays x_train, y_train, x_test and y_test, or with x and y only; then
    `test_fraction` of the rows become test data."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of every class that becomes test data if the file has no test arrays."""

    @property
    def modality(self) -> Literal["images", "tables"]:
        if not self.path.is_file():
            return "images"
        return "images" if self._read_header(self._find_arrays().x)[1] == np.uint8 else "tables"

    def describe(self) -> DataInfo | None:
        if not self.path.is_file():
            return None
        pairs = self._find_arrays()
        shape, kind = self._read_header(pairs.x)
        few = np.zeros((1, *shape[1:]), dtype=kind)
        where = f"data.source.path: {self.path}"
        form = _to_images(few, where) if kind == np.uint8 else _to_features(few, where)
        with self._open() as arrays:
            classes = len(find_class_names(self._read(arrays, pairs.y), f"{where}, {pairs.y}"))
        return DataInfo(tuple(form.shape[1:]), classes)

    def count_samples(self) -> SplitSizes | None:
        if not self.path.is_file():
            return None
        pairs = self._find_arrays()
        (count, *_), _ = self._read_header(pairs.x)
        if pairs.x_test:
            return SplitSizes(count, self._read_header(pairs.x_test)[0][0])
        out = math.ceil(self.test_fraction * count)
        return SplitSizes(count - out, out)

    def load(self) -> DataSet:
        if not self.path.is_file():
            raise DataError(f"data.source.path: no file {self.path.absolute()}")
        pairs, where = self._find_arrays(), f"data.source.path: {self.path}"
        with self._open() as arrays:
            y = self._read(arrays, pairs.y)
            names = find_class_names(y, f"{where}, {pairs.y}")
            train = make_samples(self._read(arrays, pairs.x), y, names, f"{where}, {pairs.x}")
            if pairs.x_test:
                there = self._read(arrays, pairs.x_test), self._read(arrays, pairs.y_test)
                test = make_samples(*there, names, f"{where}, {pairs.x_test}")
                return DataSet(self.path.stem, train, test, names)
        return split_off_test(self.path.stem, train, names, self.test_fraction)

    @contextmanager
    def _open(self) -> Iterator[Any]:  # numpy types it as Any too
        """Open the file within a context; whatever is wrong with it there is a DataError."""
        with self._explain_errors(), self.path.open("rb") as file:
            # no pickles: unpickling a file could run its code
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise TypeError("it holds one array without a name")
            yield arrays

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Open a context in which whatever is wrong with the file is a DataError that names it."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # zip, zlib and numpy raise a dozen types for damaged files
            raise DataError(
                f"data.source.path: {self.path} is not an .npz file that can be read ({error}); "
                "numpy.savez writes one"
            ) from error

    def _read(self, arrays: Any, name: str) -> np.ndarray:  # noqa: ANN401
        """Return one array; raise DataError if it is damaged or larger than the memory."""
        shape, kind = self._read_header(name)
        size = math.prod(shape) * kind.itemsize
        if size > (free := read_free_bytes(torch.device("cpu"))):
            raise DataError(
                f"data.source.path: {self.path}, {name}: {size:,} bytes, and {free:,} are free"
            )
        array: np.ndarray = arrays[name]
        return array

    def _find_arrays(self) -> _ArrayNames:
        with self._open() as arrays:
            there = arrays.files
        for names in _NAMES:
            if all(name in there for name in names if name):
                return _ArrayNames(*names)
        raise DataError(
            f"data.source.path: {self.path} has the arrays {', '.join(there) or 'none'}; it needs "
            "x_train, y_train, x_test and y_test, or x and y"
        )

    def _read_header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return an array's shape and type from its header, without reading its values."""
        with (
            self._explain_errors(),
            zipfile.ZipFile(self.path) as file,
            file.open(f"{name}.npy") as array,
        ):
            version = np.lib.format.read_magic(array)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
            shape, _, kind = read(array)
        return shape, kind


def split_off_test(name: str, samples: Samples, names: tuple[str, ...], fraction: float) -> DataSet:
    """Split samples into training and test data; the test rows are the same in every run."""
    labels = samples.labels.numpy()
    # seed 0: the test rows belong to the data, not to the run
    kept, out = hold_out(labels, fraction, numpy_rng_for(0, "arrays", "test"))
    return DataSet(name, samples.take(kept), samples.take(out), names)
