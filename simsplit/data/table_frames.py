"""This module encodes table rows with scikit-learn: numbers standardised, categories one-hot.

Medians, means, scales and categories are fitted on the training rows, which are private to the
clients, or on a file of public rows. A run's `data.json` says which.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from simsplit.client_names import name_owners
from simsplit.config import Config
from simsplit.data.arrays import find_class_names, number_labels
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.source_config import SourceConfig
from simsplit.data.splits import hold_out
from simsplit.errors import DataError, format_list, suggest
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pandas as pd

MISSING = "(missing)"
"""The category of an empty cell."""
_LEAST_IDS = 30
"""In fewer rows whole numbers are all different by chance."""
_FORMATS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".gz": ","}


class FrameOptions(Config):
    """Options for reading the columns of a table."""

    target: str | None = None
    """Column of classes; null: the last column."""
    categories: tuple[str, ...] | None = None
    """Columns of categories; null: the columns of strings and booleans."""
    drop: tuple[str, ...] = ()
    """Columns to leave out, such as names and row numbers."""
    client: str | None = None
    """Column that names the client of each row, for `partition: natural`; it is not a feature.
    null: rows belong to no client."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of every class that becomes test data if there are no test rows."""


class TableSource(FrameOptions, SourceConfig):
    """A CSV or parquet table: a row per sample; numbers, categories and a column of classes."""

    modality: ClassVar[Literal["tables"]] = "tables"
    kind: Literal["table"] = "table"
    path: Path
    """File of rows (.csv, .tsv or .parquet)."""
    test: Path | None = None
    """File of test rows; null: `test_fraction` of every class becomes test data."""
    public: Path | None = None
    """File of public rows on which scales and categories are fitted; null: they are fitted on all
    training rows, before any are held out."""
    missing: tuple[str, ...] = ("?",)
    """Cells of a text file that count as empty, besides empty ones and pandas' words for them, such
    as NA, None, null and nan."""
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """Character between the cells of a text file; null: a comma, and a tab in a .tsv file."""

    @property
    def is_quick(self) -> bool:
        return self.path.is_file()

    def describe(self) -> DataInfo | None:
        return self.load().info if self.path.is_file() else None

    def load(self) -> DataSet:
        """Read and encode the rows, once per process unless a file changes."""
        files = [file for file in (self.path, self.test, self.public) if file is not None]
        for file in files:
            if not file.is_file():
                raise DataError(f"data.source.path: no file {file.absolute()}")
        return _load_cached(self, tuple(file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=4)
def _load_cached(source: TableSource, changed: tuple[int, ...]) -> DataSet:
    del changed  # part of the cache's key: a changed file is read again
    train, test, public = (
        None
        if file is None
        else read_frame(file, source.missing, source.separator, as_text=source.client)
        for file in (source.path, source.test, source.public)
    )
    assert train is not None
    return encode_frames(source.path.stem, train, test, source, public=public)


class SklearnSource(SourceConfig):
    """A table that comes with scikit-learn; nothing is downloaded."""

    modality: ClassVar[Literal["tables"]] = "tables"
    is_quick: ClassVar[bool] = True
    kind: Literal["sklearn"] = "sklearn"
    name: Literal["breast_cancer", "wine", "iris", "digits"] = "breast_cancer"
    """Name of the table: breast_cancer (569 rows of 30 numbers, 2 classes), wine (178 rows of 13, 3
    classes), iris (150 rows of 4, 3 classes) or digits (1,797 rows of 64, 10 classes)."""

    def describe(self) -> DataInfo:
        sizes = {"breast_cancer": (30, 2), "wine": (13, 3), "iris": (4, 3), "digits": (64, 10)}
        columns, classes = sizes[self.name]
        return DataInfo((columns,), classes)

    def load(self) -> DataSet:
        """Return four fifths as training data and the rest as test data, the same in every run."""
        import sklearn.datasets

        loaded = getattr(sklearn.datasets, f"load_{self.name}")(as_frame=True)
        names = [str(name) for name in loaded.target_names]
        frame = loaded.frame.assign(target=[names[number] for number in loaded.target])
        return encode_frames(self.name, frame, None, FrameOptions(target="target"))


def read_frame(
    file: Path,
    missing: Sequence[str],
    separator: str | None = None,
    *,
    as_text: str | None = None,
) -> "pd.DataFrame":
    """Read the rows of a CSV or parquet file.

    `as_text` is a column of ids or names, whose cells are kept as they are written in a text file:
    as numbers, 0012 and 12 would be one.
    """
    import pandas as pd

    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return pd.read_parquet(file)
        if kind in _FORMATS:
            sep = separator or _FORMATS[kind]
            kinds = None if as_text is None else {as_text: str}
            read = pd.read_csv(
                file, sep=sep, skipinitialspace=True, na_values=list(missing), dtype=kinds
            )
            return _refuse_other_separator(read, file, sep)
    except UnicodeDecodeError as error:
        raise DataError(
            f"data.source.path: {file} is not in UTF-8, as its byte {error.start:,} shows; convert "
            f"it, from Latin-1 with: iconv -f latin1 -t utf-8 {file} > utf8{kind}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"data.source.path: {file} cannot be read ({error})") from error
    raise DataError(
        f"data.source.path: {file} is not a table; allowed: {', '.join((*_FORMATS, '.parquet'))}"
    )


def _refuse_other_separator(frame: "pd.DataFrame", file: Path, sep: str) -> "pd.DataFrame":
    """Return a table; raise DataError if all of it is one column that another sign divides."""
    if len(frame.columns) == 1:
        name = str(frame.columns[0])
        for other in (each for each in ";\t|," if each != sep and each in name):
            raise DataError(
                f"data.source.separator: {file} is one column if cells end at {sep!r}; its first "
                f"line has others: set separator: {json.dumps(other)}"
            )
    return frame


def encode_frames(
    name: str,
    train: "pd.DataFrame",
    test: "pd.DataFrame | None",
    options: FrameOptions,
    *,
    public: "pd.DataFrame | None" = None,
) -> DataSet:
    """Encode training and test rows: features as float32, classes by number."""
    train = _name_columns(train).reset_index(drop=True)  # rows are told by their place in the file
    test, public = (None if each is None else _name_columns(each) for each in (test, public))
    target = _check_column(train, options.target or str(train.columns[-1]), "target")
    where = f"data.source.target: {name}, column '{target}'"
    _refuse_measured(train[target], target)
    names = find_class_names(train[target].to_numpy(), where)
    whole = train
    tested = "path" if test is None else "test"
    if test is None:
        labels = number_labels(train[target].to_numpy(), names, where)
        rng = numpy_rng_for(0, "table", "test")
        kept, out = hold_out(labels, options.test_fraction, rng)
        train, test = train.iloc[kept], train.iloc[out]
    features = _choose_features(train, target, options)
    numbers = [column for column in features if not features[column]]
    for other, which in ((test, "test"), (public, "public")):
        wanted = [*features, target] if which == "test" else [*features]
        lacking = [] if other is None else [each for each in wanted if each not in other.columns]
        if lacking:
            raise DataError(f"data.source.{which}: has no column '{lacking[0]}'")
    categories = [column for column in features if features[column]]
    filled = filter(None, [_warn_of_filled(whole, numbers, features)])
    for rows, which in ((train, "path"), (test, tested), (public, "public")):
        if rows is not None:
            _refuse_infinite(rows, numbers, which)
    # the test rows are split off by now: nothing is fitted on them
    fitted = _build_encoder(numbers, categories).fit(
        _fill_categories(train if public is None else public, categories)
    )
    owners, owner_names = _number_owners(train, options)

    def encode(rows: "pd.DataFrame", split: str, owners: np.ndarray | None = None) -> Samples:
        inputs = fitted.transform(_fill_categories(rows, categories)).astype(np.float32)
        labels = number_labels(rows[target].to_numpy(), names, f"{where} ({split})")
        return Samples(torch.from_numpy(inputs), torch.from_numpy(labels), owners=owners)

    on = "training rows, which are clients' own" if public is None else "public rows"
    return DataSet(
        name,
        encode(train, "train", owners),
        encode(test, "test"),
        names,
        fitted=on,
        owner_names=owner_names,
        warnings=(*_warn_of_numbered(train, numbers), *filled),
        columns=_list_encoded(fitted, numbers, categories),
    )


def _name_columns(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return a frame whose columns have strings for names; raise DataError for doubled ones."""
    named = frame.set_axis([str(each) for each in frame.columns], axis=1)
    if twice := [*named.columns[named.columns.duplicated()]]:
        raise DataError(f"data.source: has column '{twice[0]}' twice; give each a name of its own")
    return named


def _warn_of_filled(frame: "pd.DataFrame", numbers: list[str], features: Iterable[str]) -> str:
    """Return the warning of features with empty cells, and of what fills them; empty: none."""
    empty = {each: int(frame[each].isna().sum()) for each in features}
    by = {each: "its median" if each in numbers else f"the category {MISSING}" for each in empty}
    counts = [
        f"'{each}' ({count:,} of {len(frame):,}, by {by[each]})"
        for each, count in empty.items()
        if count
    ]
    return f"scenario.data.source: empty cells are filled: {format_list(counts)}" if counts else ""


def _list_encoded(fitted: Any, numbers: list[str], categories: list[str]) -> tuple[str, ...]:  # noqa: ANN401 - sklearn is untyped
    """List the source's column of each encoded number: a category has one for each value."""
    if not categories:
        return tuple(numbers)
    values = fitted.named_transformers_["categories"].categories_
    pairs = zip(categories, values, strict=True)
    return (*numbers, *(column for column, each in pairs for _ in each))


def _warn_of_numbered(frame: "pd.DataFrame", numbers: list[str]) -> Iterator[str]:
    """Yield a warning for each column of whole numbers that differ in every row, as an id does."""
    from pandas.api import types

    for column in numbers:
        distinct = frame[column].nunique()
        if types.is_integer_dtype(frame[column]) and distinct == len(frame) >= _LEAST_IDS:
            yield (
                f"scenario.data.source.drop: column '{column}' has another whole number in each of "
                f"{len(frame):,} rows, as an id has; if it is one, leave it out: drop: [{column}]"
            )


def _check_column(frame: "pd.DataFrame", column: str, field: str) -> str:
    columns = [str(each) for each in frame.columns]
    if column not in columns:
        raise DataError(
            f"data.source.{field}: no column '{column}'{suggest(column, columns)} allowed: "
            f"{', '.join(columns[:20])}"
        )
    return column


def _refuse_measured(column: "pd.Series[Any]", name: str) -> None:
    """Raise DataError if a target is measured, not classes."""
    from pandas.api import types

    distinct, rows = column.nunique(), len(column)
    broken = types.is_float_dtype(column) and bool((column.dropna() % 1 != 0).any())
    if distinct > (30 if broken else max(30, rows // 2)):
        raise DataError(
            f"data.source.target: column '{name}' has {distinct:,} different values in {rows:,} "
            "rows, too many for classes; turn it into a few groups, or name another column"
        )


def _refuse_infinite(frame: "pd.DataFrame", numbers: list[str], which: str) -> None:
    """Raise DataError if a column of numbers has an infinite one, or one whose square would be."""
    # A column is divided by its deviation, whose square a value of 1e300 makes infinite.
    most = np.sqrt(np.finfo(np.float64).max / max(1, len(frame)))
    for column in numbers:
        values = frame[column].to_numpy(np.float64, na_value=np.nan)
        infinite = np.flatnonzero(np.abs(values) > most)
        if len(infinite):
            first = int(frame.index[infinite[0]]) + 1
            is_close = np.isfinite(values[infinite[0]])
            raise DataError(
                f"data.source.{which}: column '{column}' is {'nearly ' if is_close else ''}"
                f"infinite ({values[infinite[0]]:g}) in {len(infinite):,} of {len(frame):,} rows, "
                f"row {first} first; leave it empty, or leave the column out with drop: [{column}]"
            )


def _choose_features(frame: "pd.DataFrame", target: str, options: FrameOptions) -> dict[str, bool]:
    """Return the feature columns, each with whether it holds categories."""
    for column in (*options.drop, *(options.categories or ())):
        _check_column(frame, column, "drop" if column in options.drop else "categories")
    left_out = {target, options.client, *options.drop}
    columns = [str(column) for column in frame.columns if str(column) not in left_out]
    if not columns:
        raise DataError("data.source.drop: leaves no feature column; drop fewer columns")
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
            f"data.source.categories: column '{name}' holds strings; add it to categories, or "
            f"leave it out with drop: [{name}]"
        )
    return not number


def _build_encoder(numbers: list[str], categories: list[str]) -> Any:  # noqa: ANN401 - sklearn is untyped
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    filled = SimpleImputer(strategy="median", keep_empty_features=True)
    # a category that was not fitted (it is only in test rows, say) becomes all zeros
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [("numbers", make_pipeline(filled, StandardScaler()), numbers)] if numbers else []
    steps += [("categories", one_hot, categories)] if categories else []
    return ColumnTransformer(steps)


def _as_whole(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return whole numbers as such: an empty cell makes floats of a column, and `1.0` of `1`."""
    from pandas.api import types

    if types.is_float_dtype(column) and bool((column.dropna() % 1 == 0).all()):
        return column.astype("Int64")
    return column


def _fill_categories(frame: "pd.DataFrame", categories: list[str]) -> "pd.DataFrame":
    """Return a copy with categories as strings; an empty cell is a category of its own."""
    frame = frame.copy()
    for column in categories:
        values = _as_whole(frame[column]).astype(object)
        frame[column] = values.where(frame[column].notna(), MISSING).astype(str)
    return frame


def _number_owners(
    frame: "pd.DataFrame", options: FrameOptions
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return each row's client by number, and their names; None if rows belong to no client."""
    if options.client is None:
        return None, ()
    column = frame[_check_column(frame, options.client, "client")]
    if column.isna().any():
        raise DataError(f"data.source.client: column '{options.client}' has empty cells")
    values, owners = np.unique(column.astype(str).to_numpy(dtype=str), return_inverse=True)
    return owners.astype(np.int64), name_owners(options.client, values.tolist())
