"""Data in the Hugging Face hub's layout: tables with a column of images and one of labels.

A parquet folder and a data set of the hub differ in how their table is found; columns, class names
and pixels are read by the same code.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from simsplit.config import Config
from simsplit.data.arrays import class_names_of, numbered
from simsplit.data.images import Channels, Form, form_of, opened, stacked
from simsplit.data.samples import DataInfo, DataSet, Samples, checked_labels
from simsplit.data.splits import Limit
from simsplit.data.stored import hub_table, parquet_files, parquet_table, unreadable
from simsplit.errors import DataError, near

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Columns:
    """Where a table keeps images and labels, and what the labels are called (if it says)."""

    image: str
    label: str
    names: tuple[str, ...] | None


class TableConfig(Config):
    """Options of tables of images."""

    modality: ClassVar[Literal["images"]] = "images"

    image: str | None = None
    """Column of images; null: found by its type."""
    label: str | None = None
    """Column of labels: numbers from 0 on, or words; null: found by its type."""
    size: int | None = Field(default=None, ge=1)
    """Height and width to resize images to; null: all must have the same size."""
    channels: Channels | None = None
    """1 for grey, 3 for colour; null: as in the first image."""


class ParquetSource(TableConfig):
    """A folder of parquet files as downloaded from the Hugging Face hub."""

    kind: Literal["parquet"] = "parquet"
    path: Path
    """Folder with train.parquet and test.parquet or validation.parquet, or shards
    (train-*.parquet)."""

    def describe(self) -> DataInfo | None:
        """From the schema, the labels and the first image; None where there are no files yet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.path.is_dir():
            return None
        first, *_ = files = parquet_files(self.path, ("train",))
        try:
            with pq.ParquetFile(first) as parquet:
                columns = columns_of(parquet.schema_arrow, self, str(first))
                batch = next(parquet.iter_batches(batch_size=1, columns=[columns.image]))
            form = _form(pa.Table.from_batches([batch]), columns, self, str(first))
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise unreadable(first, error) from error
        if columns.names is not None:
            return DataInfo(form.shape, len(columns.names))
        names = _names(parquet_table(files, [columns.label]), columns, str(self.path))
        return DataInfo(form.shape, len(names))

    def load(self, limit: Limit | None = None) -> DataSet:
        """Decode every image, or those that a limit leaves."""
        train = parquet_table(parquet_files(self.path, ("train",)))
        test = parquet_table(parquet_files(self.path, ("test", "validation")))
        return data_set(self.path.name, train, test, self, limit)


class HubSource(TableConfig):
    """A data set of the Hugging Face hub, or a local folder laid out like one."""

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, such as `uoft-cs/cifar10`."""
    config: str | None = None
    """The data set's configuration, if it has several."""
    revision: str | None = None
    """Branch, tag or commit; set one for reproducible data."""
    train_split: str = "train"
    """The split to train on."""
    test_split: str = "test"
    """The split to test on; some data sets call it `validation`."""

    def describe(self) -> DataInfo | None:
        """Unknown without asking the hub."""
        return None

    def load(self, limit: Limit | None = None) -> DataSet:
        """Fetch (or find in the hub's cache) and decode every image that a limit leaves."""
        where = (self.name, self.config, self.revision)
        train = hub_table(*where, self.train_split)
        test = hub_table(*where, self.test_split)
        return data_set(self.name.rsplit("/", 1)[-1], train, test, self, limit)


def data_set(
    name: str,
    train: "pa.Table",
    test: "pa.Table",
    config: TableConfig,
    limit: Limit | None = None,
) -> DataSet:
    """Both tables decoded into the form that the first training image sets."""
    columns = columns_of(train.schema, config, f"{name} (train)")
    for split, table in (("train", train), ("test", test)):
        _check_column(table, columns, f"{name} ({split})")
    names = columns.names or _names(train, columns, f"{name} (train)")
    form = _form(train, columns, config, f"{name} (train)")
    strict = config.channels is None
    made = [
        _samples(
            _limited(table, columns, limit, split, names),
            columns,
            form,
            names,
            f"{name} ({split})",
            strict=strict,
        )
        for split, table in (("train", train), ("test", test))
    ]
    return DataSet(name, made[0], made[1], names)


def _limited(
    table: "pa.Table", columns: Columns, limit: Limit | None, split: str, names: tuple[str, ...]
) -> "pa.Table":
    """Only the rows that will be used: decoding images is most of what loading costs."""
    labels = _labels(table, columns, split, names)
    rows = None if limit is None else limit.rows(labels, split, names)
    return table if rows is None else table.take(rows)


def columns_of(schema: "pa.Schema", config: TableConfig, where: str) -> Columns:
    """The columns that `config` names, or the only ones whose types can be images and labels."""
    import pyarrow.types as kinds

    def is_image(kind: "pa.DataType") -> bool:
        if kinds.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    def is_word(kind: "pa.DataType") -> bool:
        return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_boolean(kind))

    images = [f.name for f in schema if is_image(f.type)]
    if not images and config.image is None:
        raise DataError(
            f"data.source.image: {where}: no column holds encoded images (bytes), got "
            f"{', '.join(f'{f.name}: {f.type}' for f in schema)}; save arrays with numpy.savez and "
            "use {kind: npz, path: ...}"
        )
    image = _column("image", config.image, images, where)
    integers = [f.name for f in schema if kinds.is_integer(f.type)]
    words = [f.name for f in schema if is_word(f.type)]
    named = [name for name in (*words, *_floats(schema)) if name == config.label]
    label = _column("label", config.label, [*integers, *named] or words, where)
    names = _features(schema).get(label, {}).get("names")
    return Columns(image, label, tuple(names) if names else None)


def _floats(schema: "pa.Schema") -> list[str]:
    import pyarrow.types as kinds

    return [field.name for field in schema if kinds.is_floating(field.type)]


def _column(role: str, wanted: str | None, fitting: list[str], where: str) -> str:
    if wanted is None and len(fitting) == 1:
        return fitting[0]
    if wanted in fitting:
        return wanted
    choice = ", ".join(fitting) or "none"
    if wanted is None:
        problem = f"{len(fitting)} columns can be the {role}"
        raise DataError(f"data.source.{role}: {where}: {problem}, name one of: {choice}")
    raise DataError(
        f"data.source.{role}: {where}: no {role} column '{wanted}'{near(wanted, fitting)} "
        f"allowed: {choice}"
    )


def _features(schema: "pa.Schema") -> dict[str, Any]:
    """The hub's own description of the columns, which parquet files carry along."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        features: dict[str, Any] = described["info"]["features"]
    except (KeyError, ValueError):
        return {}
    return features


def _check_column(table: "pa.Table", columns: Columns, where: str) -> None:
    for role, name in (("image", columns.image), ("label", columns.label)):
        if name not in table.column_names:
            raise DataError(f"data.source.{role}: {where} has no column '{name}'")
    if table.num_rows == 0:
        raise DataError(f"data.source: {where} has no rows")


def _form(table: "pa.Table", columns: Columns, config: TableConfig, where: str) -> Form:
    source, place = next(_sources(table.slice(0, 1), columns, where))
    return form_of(opened(source, place), config.size, config.channels, place)


def _samples(
    table: "pa.Table",
    columns: Columns,
    form: Form,
    names: tuple[str, ...],
    where: str,
    *,
    strict: bool,
) -> Samples:
    found = _labels(table, columns, where, names)
    labels = checked_labels(found, len(names), f"data.source.label: {where}")
    inputs = stacked(_sources(table, columns, where), len(labels), form, strict=strict)
    return Samples(inputs, torch.from_numpy(labels))


def _names(table: "pa.Table", columns: Columns, where: str) -> tuple[str, ...]:
    """The classes of labels whose names nobody wrote down: numbers from 0 on, or words."""
    import pyarrow.types as kinds

    if kinds.is_integer(table.schema.field(columns.label).type):
        labels = _labels(table, columns, where, ())
        return tuple(str(number) for number in range(int(labels.max()) + 1))
    return class_names_of(table[columns.label].to_numpy(), f"data.source.label: {where}")


def _labels(table: "pa.Table", columns: Columns, where: str, names: tuple[str, ...]) -> np.ndarray:
    import pyarrow.types as kinds

    column = table[columns.label]
    if column.null_count:
        raise DataError(
            f"data.source.label: {where}: {column.null_count} rows of '{columns.label}' are "
            "empty; every row needs a label"
        )
    if kinds.is_integer(column.type):
        return np.array(column.to_numpy(), dtype=np.int64)
    return numbered(column.to_numpy(), names, f"data.source.label: {where}")


def _sources(table: "pa.Table", columns: Columns, where: str) -> Iterator[tuple[bytes | Path, str]]:
    """Every row's image, as bytes or (where a table only refers to it) the path of a file."""
    # a chunk at a time, so that not all encoded images are held twice
    row = 0
    for chunk in table[columns.image].chunks:
        for value in chunk.to_pylist():
            place = f"data.source.image: {where}, row {row}"
            content = value if isinstance(value, bytes) else _content(value)
            if content is None:
                raise DataError(f"{place}: empty; remove the row")
            yield content, place
            row += 1


def _content(value: dict[str, Any] | None) -> bytes | Path | None:
    value = value or {}
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    return Path(value["path"]) if value.get("path") else None
