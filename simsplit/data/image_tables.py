"""This module reads the Hugging Face hub's layout: a column of images and one of labels.

Parquet folders and data sets of the hub differ only in how the table is loaded; columns, class
names and pixels are read by the same code.
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
from simsplit.data.arrays import find_class_names, number_labels
from simsplit.data.cached_sets import (
    count_rows,
    explain_unreadable,
    find_parquet_files,
    load_hub_table,
    read_parquet,
)
from simsplit.data.images import Channels, Form, choose_form, open_image, stack_images
from simsplit.data.samples import DataInfo, DataSet, Samples, SplitSizes, check_labels
from simsplit.data.splits import Limit
from simsplit.errors import DataError, suggest

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Columns:
    """A table's columns of images and labels, and the names of its classes if it has them."""

    image: str
    label: str
    names: tuple[str, ...] | None


class TableConfig(Config):
    """The base of tables of images."""

    modality: ClassVar[Literal["images"]] = "images"

    image: str | None = None
    """Column of images; null: the only column with encoded images."""
    label: str | None = None
    """Column of labels, numbers from 0 or names; null: the only column that fits."""
    size: int | None = Field(default=None, ge=1)
    """Height and width to which images are resized, in pixels; null: all must have the same
    size."""
    channels: Channels | None = None
    """1 for grey, 3 for colour; null: as in the first image."""

    def count_samples(self) -> SplitSizes | None:
        """Return the number of samples without reading them; None if it cannot be known yet."""
        return None


class ParquetSource(TableConfig):
    """A folder of parquet files of images, as downloaded from the Hugging Face hub."""

    kind: Literal["parquet"] = "parquet"
    path: Path
    """Folder with train.parquet and test.parquet or validation.parquet, or shards
    (train-*.parquet)."""

    def describe(self) -> DataInfo | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.path.is_dir():
            return None
        first, *_ = files = find_parquet_files(self.path, "train")
        with explain_unreadable(first):
            with pq.ParquetFile(first) as parquet:
                columns = choose_columns(parquet.schema_arrow, self, str(first))
                batch = next(parquet.iter_batches(batch_size=1, columns=[columns.image]))
            form = _choose_form(pa.Table.from_batches([batch]), columns, self, str(first))
        if columns.names is not None:
            return DataInfo(form.shape, len(columns.names))
        names = _find_classes(read_parquet(files, [columns.label]), columns, str(self.path))
        return DataInfo(form.shape, len(names))

    def count_samples(self) -> SplitSizes | None:
        return count_rows(self.path) if self.path.is_dir() else None

    def load(self, limit: Limit | None = None) -> DataSet:
        train, test = (
            read_parquet(find_parquet_files(self.path, split)) for split in ("train", "test")
        )
        return decode_tables(self.path.name, train, test, self, limit)


class HubSource(TableConfig):
    """A data set of images on the Hugging Face hub, or a local folder laid out like one."""

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, such as `uoft-cs/cifar10`."""
    config: str | None = None
    """Configuration of the data set, if it has several; null: the only one."""
    revision: str | None = None
    """Branch, tag or commit; set one for reproducible data. null: the newest."""
    train_split: str = "train"
    """Split to train on."""
    test_split: str = "test"
    """Split to test on; some data sets call it `validation`."""

    def describe(self) -> DataInfo | None:
        """Return None: shape and classes are unknown until the data are fetched."""
        return None

    def load(self, limit: Limit | None = None) -> DataSet:
        where = (self.name, self.config, self.revision)
        train = load_hub_table(*where, self.train_split)
        test = load_hub_table(*where, self.test_split)
        return decode_tables(self.name.rsplit("/", 1)[-1], train, test, self, limit)


def decode_tables(
    name: str,
    train: "pa.Table",
    test: "pa.Table",
    config: TableConfig,
    limit: Limit | None = None,
) -> DataSet:
    """Decode both tables into the form that the first training image and `config` set."""
    columns = choose_columns(train.schema, config, f"{name} (train)")
    for split, table in (("train", train), ("test", test)):
        _check_columns(table, columns, f"{name} ({split})")
    names = columns.names or _find_classes(train, columns, f"{name} (train)")
    form = _choose_form(train, columns, config, f"{name} (train)")

    def decode(split: str, table: "pa.Table") -> Samples:
        # Only the rows to use: decoding images takes most of the time of loading.
        labels, where = _read_labels(table, columns, split, names), f"{name} ({split})"
        rows = None if limit is None else limit.choose_rows(labels, split, names)
        if rows is not None:
            table, labels = table.take(rows), labels[rows]
        check_labels(labels, len(names), f"data.source.label: {where}")
        images, strict = _iterate_images(table, columns, where), config.channels is None
        inputs = stack_images(images, len(labels), form, strict=strict)
        return Samples(inputs, torch.from_numpy(labels))

    return DataSet(name, decode("train", train), decode("test", test), names)


def choose_columns(schema: "pa.Schema", config: TableConfig, where: str) -> Columns:
    """Return the columns that `config` names, or the only ones that can be images and labels."""
    import pyarrow.types as kinds

    def is_image(kind: "pa.DataType") -> bool:
        if kinds.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    def is_name(kind: "pa.DataType") -> bool:
        return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_boolean(kind))

    images = [f.name for f in schema if is_image(f.type)]
    if not images and config.image is None:
        raise DataError(
            f"data.source.image: {where}: no column holds encoded images (bytes), got "
            f"{', '.join(f'{f.name}: {f.type}' for f in schema)}; save arrays with numpy.savez and "
            "use {kind: npz, path: ...}"
        )
    image = _choose_column("image", config.image, images, where)
    integers = [f.name for f in schema if kinds.is_integer(f.type)]
    strings = [f.name for f in schema if is_name(f.type)]
    floats = [f.name for f in schema if kinds.is_floating(f.type)]
    named = [name for name in (*strings, *floats) if name == config.label]
    label = _choose_column("label", config.label, [*integers, *named] or strings, where)
    names = _read_features(schema).get(label, {}).get("names")
    return Columns(image, label, tuple(names) if names else None)


def _choose_column(role: str, wanted: str | None, fitting: list[str], where: str) -> str:
    if wanted is None and len(fitting) == 1:
        return fitting[0]
    if wanted in fitting:
        return wanted
    choice = ", ".join(fitting) or "none"
    if wanted is None:
        problem = f"{len(fitting)} columns can be the {role}"
        raise DataError(f"data.source.{role}: {where}: {problem}, name one of: {choice}")
    raise DataError(
        f"data.source.{role}: {where}: no {role} column '{wanted}'{suggest(wanted, fitting)} "
        f"allowed: {choice}"
    )


def _read_features(schema: "pa.Schema") -> dict[str, Any]:
    """Return the hub's description of the columns, which parquet files carry as metadata."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        features: dict[str, Any] = described["info"]["features"]
    except (KeyError, ValueError):
        return {}
    return features


def _check_columns(table: "pa.Table", columns: Columns, where: str) -> None:
    for role, name in (("image", columns.image), ("label", columns.label)):
        if name not in table.column_names:
            raise DataError(f"data.source.{role}: {where} has no column '{name}'")
    if table.num_rows == 0:
        raise DataError(f"data.source: {where} has no rows")


def _choose_form(table: "pa.Table", columns: Columns, config: TableConfig, where: str) -> Form:
    source, place = next(_iterate_images(table.slice(0, 1), columns, where))
    return choose_form(open_image(source, place), config.size, config.channels, place)


def _find_classes(table: "pa.Table", columns: Columns, where: str) -> tuple[str, ...]:
    """Return the classes of a table that names none: its labels, or numbers from 0 on."""
    import pyarrow.types as kinds

    if kinds.is_integer(table.schema.field(columns.label).type):
        labels = _read_labels(table, columns, where, ())
        return tuple(str(number) for number in range(int(labels.max()) + 1))
    return find_class_names(table[columns.label].to_numpy(), f"data.source.label: {where}")


def _read_labels(
    table: "pa.Table", columns: Columns, where: str, names: tuple[str, ...]
) -> np.ndarray:
    import pyarrow.types as kinds

    column = table[columns.label]
    if column.null_count:
        raise DataError(
            f"data.source.label: {where}: {column.null_count} rows of '{columns.label}' are "
            "empty; every row needs a label"
        )
    if kinds.is_integer(column.type):
        return np.array(column.to_numpy(), dtype=np.int64)
    return number_labels(column.to_numpy(), names, f"data.source.label: {where}")


def _iterate_images(
    table: "pa.Table", columns: Columns, where: str
) -> Iterator[tuple[bytes | Path, str]]:
    """Yield every row's image: its bytes or, if the table only refers to it, a file's path."""
    # one chunk at a time, so that not all encoded images are in memory twice
    row = 0
    for chunk in table[columns.image].chunks:
        for value in chunk.to_pylist():
            place = f"data.source.image: {where}, row {row}"
            content = value if isinstance(value, bytes) else _get_image(value)
            if content is None:
                raise DataError(f"{place}: empty; remove the row")
            yield content, place
            row += 1


def _get_image(value: dict[str, Any] | None) -> bytes | Path | None:
    value = value or {}
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    return Path(value["path"]) if value.get("path") else None
