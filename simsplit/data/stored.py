"""Where tables of samples lie: parquet files in the hub's layout, or the hub itself."""

from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def hub_table(name: str, config: str | None, revision: str | None, split: str) -> "pa.Table":
    """One split of a data set, fetched or found in the hub's cache."""
    import datasets

    saved = (Path(name) / "dataset_dict.json").is_file()  # by save_to_disk
    try:
        if saved:
            loaded = datasets.load_from_disk(name)[split]
        else:
            loaded = datasets.load_dataset(name, config, revision=revision, split=split)
    except Exception as error:  # the hub's client raises from half a dozen packages
        raise DataError(
            f"data.source.name: '{name}' (split '{split}') cannot be loaded: {error}; "
            "check the names and the network, or download its parquet files and use "
            "{kind: parquet, path: ...}, or text_parquet"
        ) from error
    schema = loaded.features.arrow_schema
    return loaded.with_format("arrow")[:].replace_schema_metadata(schema.metadata)


def parquet_files(folder: Path, splits: tuple[str, ...]) -> list[Path]:
    """The files of the first of `splits` that has any, in `folder` or its data/."""
    for split in splits:
        for place in (folder, folder / "data"):
            whole = place / f"{split}.parquet"
            files = [whole] if whole.is_file() else sorted(place.glob(f"{split}-*.parquet"))
            if files:
                return files
    wanted = " or ".join(f"{split}.parquet" for split in splits)
    raise DataError(
        f"data.source.path: no {wanted} (or its shards) in {folder.absolute()}; "
        "name a folder that has the hub's parquet files"
    )


def parquet_table(files: list[Path], columns: list[str] | None = None) -> "pa.Table":
    """All rows of some files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in files:
        try:
            # a file at a time: `read_table` on a folder would take its name for a partition
            tables.append(pq.ParquetFile(file).read(columns))
        except (OSError, pa.ArrowException) as error:
            raise unreadable(file, error) from error
    return pa.concat_tables(tables)


def parquet_columns(file: Path) -> list[str]:
    """The names of a file's columns, without reading its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names: list[str] = pq.read_schema(file).names
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error
    return names


def unreadable(file: Path, error: Exception) -> DataError:
    """What to do about a file that is none."""
    return DataError(f"data.source.path: {file} cannot be read ({error}); download it again")
