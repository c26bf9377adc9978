"""Public data that an attacker has: a folder, a file, or a source that scenarios name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simsplit.data.arrays import NpzSource
from simsplit.data.data_config import DataConfig
from simsplit.data.folders import FolderSource
from simsplit.data.given_texts import build_given_texts
from simsplit.data.samples import Samples
from simsplit.data.sources import SOURCES
from simsplit.data.table_frames import TableSource
from simsplit.data.texts import TextParquet, TextTable
from simsplit.errors import SimsplitError
from simsplit.foreign import MOST_TABLE, read_text
from simsplit.models.tokenizers import Reader

_FIELD = "--public"
MOST_TEXTS = 20_000
"""Public texts that are read of a folder, at most."""


def load_public(given: str, truth: Samples, reader: Reader | None) -> Samples:
    """Load public data of the truth's form; raise SimsplitError for others."""
    if reader is not None:
        return _load_texts(given, truth, reader)
    loaded: Samples = _find_source(given, truth).load().train
    if loaded.inputs.shape[1:] != truth.inputs.shape[1:] or loaded.images != truth.images:
        got, wanted = (
            "x".join(map(str, each.inputs.shape[1:])) + (" images" if each.images else " values")
            for each in (loaded, truth)
        )
        raise SimsplitError(f"{_FIELD}: {given} has {got}; the recorded inputs are {wanted}")
    return loaded


def _find_source(given: str, truth: Samples) -> Any:  # noqa: ANN401 - sources of several bases
    """Return the source that a word or a path means, for images and tables."""
    path = Path(given)
    size = tuple(truth.inputs.shape[1:])
    if path.is_dir():
        return FolderSource(path=path, size=size[-1], channels=3 if size[0] == 3 else 1)
    if path.suffix == ".npz":
        return NpzSource(path=path)
    if path.suffix in (".csv", ".parquet"):
        return TableSource(path=path)
    if given in SOURCES:
        source = {"kind": given, "size": size[-1]} if given == "digits" and truth.images else given
        return DataConfig.model_validate({"source": source}).source
    raise _explain_unknown(given)


def _load_texts(given: str, truth: Samples, reader: Reader) -> Samples:
    length, path = truth.inputs.shape[1], Path(given)
    source: TextTable
    if path.is_dir() and any(path.glob("*.parquet")):
        source = TextParquet.model_validate({"path": path, "task": "language", "length": length})
    elif path.is_dir() or path.suffix == ".txt":
        lines = [*_list_lines(path)][:MOST_TEXTS]
        if len(lines) < 2:
            raise SimsplitError(f"{_FIELD}: {given} has no .txt file with two lines or more")
        source = build_given_texts({"train": lines, "test": lines[:1]}, length=length)
    elif given in SOURCES and issubclass(SOURCES[given], TextTable):
        values = {"kind": given, "task": "language", "length": length}
        made = DataConfig.model_validate({"source": values}).source
        assert isinstance(made, TextTable), "it is a source of texts"
        source = made
    else:
        raise _explain_unknown(given)
    return source.read_public(reader)


def _list_lines(path: Path) -> Iterator[str]:
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    for file in files:
        try:
            text = read_text(file, MOST_TABLE)
        except (OSError, ValueError) as error:
            raise SimsplitError(f"{_FIELD}: cannot read {file}: {error}") from None
        yield from (line for line in text.splitlines() if line.strip())


def _explain_unknown(given: str) -> SimsplitError:
    return SimsplitError(
        f"{_FIELD}: '{given}' is no folder or file with data, and no source that scenarios name; "
        "allowed: a folder of images by class or of .txt files, a .npz, .csv or .txt file, or a "
        "word of `simsplit list data`"
    )
