"""This module reads tables of samples from the hub or from parquet files in the hub's layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.data.forms import to_arrow
from simsplit.data.samples import SplitSizes
from simsplit.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def load_hub_table(name: str, config: str | None, revision: str | None, split: str) -> "pa.Table":
    """Load one split of a data set from the hub, its cache, or a folder saved by `save_to_disk`."""
    import datasets

    saved = (Path(name) / "dataset_dict.json").is_file()
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
    return to_arrow(loaded)


def find_parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split, by the first of its names that has any, here or in data/."""
    names = ("train",) if split == "train" else ("test", "validation")
    for name in names:
        for place in (folder, folder / "data"):
            whole = place / f"{name}.parquet"
            files = [whole] if whole.is_file() else sorted(place.glob(f"{name}-*.parquet"))
            if files:
                return files
    wanted = " or ".join(f"{name}.parquet" for name in names)
    raise DataError(
        f"data.source.path: no {wanted} (or its shards) in {folder.absolute()}; "
        "name a folder that has the hub's parquet files"
    )


def read_parquet(files: list[Path], columns: list[str] | None = None) -> "pa.Table":
    """Read all rows of some files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in files:
        with explain_unreadable(file):
            # one file at a time: `read_table` on a folder would read its name as a partition
            tables.append(pq.ParquetFile(file).read(columns))
    return pa.concat_tables(tables)


def read_parquet_columns(file: Path) -> list[str]:
    """Return the names of a file's columns without reading its rows."""
    import pyarrow.parquet as pq

    with explain_unreadable(file):
        names: list[str] = pq.read_schema(file).names
    return names


def count_rows(folder: Path) -> SplitSizes:
    """Count the rows of both splits without reading them."""
    import pyarrow.parquet as pq

    counts = {"train": 0, "test": 0}
    for split in counts:
        for file in find_parquet_files(folder, split):
            with explain_unreadable(file):
                counts[split] += pq.read_metadata(file).num_rows
    return SplitSizes(**counts)


@contextmanager
def explain_unreadable(file: Path) -> Iterator[None]:
    """Open a context in which the error of a file that is no parquet file names it."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, StopIteration) as error:
        raise DataError(
            f"data.source.path: {file} cannot be read ({error}); download it again"
        ) from error
