"""Rows of a table as samples: numbers standardised, categories one-hot, by scikit-learn.

What is fitted (medians, means, scales, categories) is fitted on training rows, which are clients'
own, or on a file of public rows. A run's `data.json` says which.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field

from simsplit.config import Config
from simsplit.data.arrays import class_names_of, numbered
from simsplit.data.base import SourceConfig
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.splits import held_out
from simsplit.errors import DataError, near
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pandas as pd

MISSING = "(missing)"
"""The category of an empty cell."""
_FORMATS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".gz": ","}


class FrameOptions(Config):
    """How the columns of a table are read."""

    target: str | None = None
    """Column of the classes; null: the last one."""
    categories: tuple[str, ...] | None = None
    """Columns that hold categories; null: those of words and of true or false."""
    drop: tuple[str, ...] = ()
    """Columns that are left out, such as names and numbers of rows."""
    client: str | None = None
    """Column that says whose each row is, for `partition: natural`; it is no feature."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of every class that is test data, where no test rows are given."""


class TableSource(FrameOptions, SourceConfig):
    """A CSV or parquet table: a row per sample; numbers, categories and a column of classes."""

    kind: Literal["table"] = "table"
    path: Path
    """File of the rows (.csv, .tsv or .parquet)."""
    test: Path | None = None
    """File of the test rows; null: a share of every class is held out."""
    public: Path | None = None
    """File of public rows, on which scales and categories are fitted; null: on all training rows,
    before any are held out."""
    missing: tuple[str, ...] = ("?",)
    """Cells that count as empty, besides those that are."""

    @property
    def modality(self) -> Literal["tables"]:
        """Numbers, as they are."""
        return "tables"

    def describe(self) -> DataInfo | None:
        """From the rows themselves; None where there is no file yet."""
        return self.load().info if self.path.is_file() else None

    def load(self) -> DataSet:
        """Encoded rows; read once in a process, unless the file changes."""
        files = [file for file in (self.path, self.test, self.public) if file is not None]
        for file in files:
            if not file.is_file():
                raise DataError(f"data.source.path: no file {file.absolute()}")
        return _read(self, tuple(file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=4)
def _read(source: TableSource, changed: tuple[int, ...]) -> DataSet:
    del changed  # in the cache's key
    train, test, public = (
        None if file is None else frame_of(file, source.missing)
        for file in (source.path, source.test, source.public)
    )
    assert train is not None
    return encoded(source.path.stem, train, test, source, public=public)


class SklearnSource(SourceConfig):
    """A table that comes with scikit-learn: nothing to download."""

    kind: Literal["sklearn"] = "sklearn"
    name: Literal["breast_cancer", "wine", "iris", "digits"] = "breast_cancer"
    """breast_cancer: 569 rows of 30 numbers, 2 classes; wine: 178 of 13, 3; iris: 150 of 4, 3;
    digits: 1,797 of 64, 10."""

    @property
    def modality(self) -> Literal["tables"]:
        """Numbers, as they are."""
        return "tables"

    def describe(self) -> DataInfo:
        sizes = {"breast_cancer": (30, 2), "wine": (13, 3), "iris": (4, 3), "digits": (64, 10)}
        columns, classes = sizes[self.name]
        return DataInfo((columns,), classes)

    def load(self) -> DataSet:
        """Four fifths for training, stratified, the same in every run."""
        import sklearn.datasets

        loaded = getattr(sklearn.datasets, f"load_{self.name}")(as_frame=True)
        names = [str(name) for name in loaded.target_names]
        frame = loaded.frame.assign(target=[names[number] for number in loaded.target])
        return encoded(self.name, frame, None, FrameOptions(target="target"))


def frame_of(file: Path, missing: Sequence[str]) -> "pd.DataFrame":
    """The rows of a file."""
    import pandas as pd

    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return pd.read_parquet(file)
        if kind in _FORMATS:
            commas = _FORMATS[kind]
            return pd.read_csv(file, sep=commas, skipinitialspace=True, na_values=list(missing))
    except (OSError, ValueError) as error:
        raise DataError(f"data.source.path: {file} cannot be read ({error})") from error
    raise DataError(
        f"data.source.path: {file} is no table; allowed: {', '.join((*_FORMATS, '.parquet'))}"
    )


def encoded(
    name: str,
    train: "pd.DataFrame",
    test: "pd.DataFrame | None",
    options: FrameOptions,
    *,
    public: "pd.DataFrame | None" = None,
) -> DataSet:
    """A data set out of rows: features as float32, classes by number."""
    target = _named(train, options.target or str(train.columns[-1]), "target")
    where = f"data.source.target: {name}, column '{target}'"
    names = class_names_of(train[target].to_numpy(), where)
    if test is None:
        labels = numbered(train[target].to_numpy(), names, where)
        rng = numpy_rng_for(0, "table", "test")
        kept, out = held_out(labels, options.test_fraction, rng)
        train, test = train.iloc[kept], train.iloc[out]
    features = _features(train, target, options)
    for other, which in ((test, "test"), (public, "public")):
        lacking = [] if other is None else [each for each in features if each not in other.columns]
        if lacking:
            raise DataError(f"data.source.{which}: has no column '{lacking[0]}'")
    numbers = [column for column in features if not features[column]]
    words = [column for column in features if features[column]]
    fitted = _encoder(numbers, words).fit(_clean(train if public is None else public, words))
    owners = _owners(train, options)
    made = [
        Samples(
            torch.from_numpy(fitted.transform(_clean(rows, words)).astype(np.float32)),
            torch.from_numpy(numbered(rows[target].to_numpy(), names, f"{where} ({split})")),
            owners=whose,
        )
        for rows, split, whose in ((train, "train", owners), (test, "test", None))
    ]
    on = "training rows, which are clients' own" if public is None else "public rows"
    return DataSet(name, made[0], made[1], names, fitted=on)


def _named(frame: "pd.DataFrame", column: str, field: str) -> str:
    columns = [str(each) for each in frame.columns]
    if column not in columns:
        raise DataError(
            f"data.source.{field}: no column '{column}'{near(column, columns)} allowed: "
            f"{', '.join(columns[:20])}"
        )
    return column


def _features(frame: "pd.DataFrame", target: str, options: FrameOptions) -> dict[str, bool]:
    """The columns to learn from, and whether each holds categories."""
    for column in (*options.drop, *(options.categories or ())):
        _named(frame, column, "drop" if column in options.drop else "categories")
    left_out = {target, options.client, *options.drop}
    columns = [str(column) for column in frame.columns if str(column) not in left_out]
    if not columns:
        raise DataError("data.source: no column is left to learn from")
    kinds = {column: _is_category(frame[column], column, options) for column in columns}
    for column in (column for column, category in kinds.items() if category):
        distinct = frame[column].nunique()
        if distinct > max(30, len(frame) // 2):
            raise DataError(
                f"data.source.drop: column '{column}' has {distinct:,} different values in "
                f"{len(frame):,} rows, too many for categories; leave it out with drop: [{column}]"
            )
    return kinds


def _is_category(column: "pd.Series[Any]", name: str, options: FrameOptions) -> bool:
    from pandas.api import types

    if options.categories is not None and name in options.categories:
        return True
    if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
        raise DataError(
            f"data.source.drop: column '{name}' holds dates; turn them into numbers, or leave it "
            f"out with drop: [{name}]"
        )
    number = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    if not number and options.categories is not None:
        raise DataError(
            f"data.source.categories: column '{name}' holds words, so it must be named there, or "
            "left out (drop)"
        )
    return not number


def _encoder(numbers: list[str], words: list[str]) -> Any:  # noqa: ANN401 - sklearn is untyped
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    filled = SimpleImputer(strategy="median", keep_empty_features=True)
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [("numbers", make_pipeline(filled, StandardScaler()), numbers)] if numbers else []
    steps += [("categories", one_hot, words)] if words else []
    return ColumnTransformer(steps)


def _clean(frame: "pd.DataFrame", words: list[str]) -> "pd.DataFrame":
    """Categories as words, an empty cell being one of them; infinite numbers are refused."""
    frame = frame.copy()
    for column in words:
        frame[column] = frame[column].astype(object).where(frame[column].notna(), MISSING)
        frame[column] = frame[column].astype(str)
    return frame


def _owners(frame: "pd.DataFrame", options: FrameOptions) -> np.ndarray | None:
    """Each row's client, by number."""
    if options.client is None:
        return None
    column = frame[_named(frame, options.client, "client")]
    if column.isna().any():
        raise DataError(f"data.source.client: column '{options.client}' has empty cells")
    owners: np.ndarray = np.unique(column.astype(str).to_numpy(dtype=str), return_inverse=True)[1]
    return owners.astype(np.int64)
