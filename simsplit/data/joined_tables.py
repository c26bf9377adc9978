"""Several tables, one a party, joined by a column of ids.

The rows that all tables have are in the order of their ids, and test rows are drawn from that order
alone. So parties that know the common ids agree on every batch without knowing each other's rows.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from simsplit.data.samples import DataInfo, DataSet
from simsplit.data.source_config import SourceConfig
from simsplit.data.table_frames import FrameOptions, encode_frames, read_frame
from simsplit.errors import DataError, format_list, suggest
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    import pandas as pd

FIELD = "data.source"


class JoinedSource(SourceConfig):
    """CSV or parquet tables of several parties, joined by a column of ids."""

    modality: ClassVar[Literal["tables"]] = "tables"
    kind: Literal["joined"] = "joined"
    files: Mapping[str, Path] = Field(min_length=1)
    """The file of each party by its name, such as `{bank: bank.csv, shop: shop.csv}`. A column is
    called by party and name, such as `bank.income`."""
    id: str = "id"
    """Column of ids in each file, which is no feature. Rows whose id not all files have are left
    out."""
    align: Literal["psi"] | None = None
    """psi: parties on machines of their own find their common ids by a private set intersection,
    before the run. null: they must bring the same ids. A simulation has all files."""
    target: str
    """Column of classes, in the file of one party, which then has the labels."""
    categories: tuple[str, ...] | None = None
    """Columns of categories, such as `bank.town`; null: columns of strings and booleans."""
    drop: tuple[str, ...] = ()
    """Columns to leave out, such as `bank.name`."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of the rows that becomes test data, drawn from the order of ids."""
    missing: tuple[str, ...] = ("?",)
    """Cells of a text file that count as empty, besides empty ones and pandas' words for them, such
    as NA, None, null and nan."""
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """Character between the cells of a text file; null: a comma, and a tab in a .tsv file."""

    @field_validator("files")
    @classmethod
    def _check_names(cls, value: Mapping[str, Path]) -> Mapping[str, Path]:
        for name in value:
            if not name or "." in name:
                raise ValueError(f"a party's name must have a letter and no dot, got '{name}'")
        return value

    @property
    def is_quick(self) -> bool:
        return all(file.is_file() for file in self.files.values())

    @property
    def label_party(self) -> int | None:
        """The number of the party whose file has the target; None if a file is not there."""
        if not self.is_quick:
            return None
        owner, _ = self.split_target(_read_cached(self.model_dump_json(), self._get_times()))
        return [*self.files].index(owner)

    def describe(self) -> DataInfo | None:
        return self.load().info if self.is_quick else None

    def load(self) -> DataSet:
        """Read, join and encode the rows, once per process unless a file changes."""
        for party, file in self.files.items():
            if not file.is_file():
                raise DataError(f"{FIELD}.files.{party}: no file {file.absolute()}")
        return _load_cached(self.model_dump_json(), self._get_times())

    def _get_times(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns for file in self.files.values())

    def split_target(self, frames: Mapping[str, "pd.DataFrame"]) -> tuple[str, str]:
        """Return the party that has the target, and the column's name; raise DataError otherwise.

        The target may be called by its name alone, or with its party.
        """
        known = {f"{party}.{column}" for party, frame in frames.items() for column in frame}
        meant = [name for name in sorted(known) if self.target in (name, name.split(".", 1)[1])]
        if len(meant) > 1:  # a column that is left out is no label
            meant = [name for name in meant if name not in self.drop] or meant
        if len(meant) > 1:
            raise DataError(
                f"{FIELD}.target: '{self.target}' is a column of {format_list(meant)}, and one "
                "party has the labels; leave the others out with drop, or name one, such as "
                f"{meant[0]}: then the others are features"
            )
        if not meant:
            raise DataError(
                f"{FIELD}.target: no file has a column '{self.target}'"
                f"{suggest(self.target, known) or ','} allowed: {format_list(sorted(known), 20)}"
            )
        party, column = meant[0].split(".", 1)
        return party, column


@lru_cache(maxsize=4)
def _read_cached(fields: str, changed: tuple[int, ...]) -> Mapping[str, "pd.DataFrame"]:
    """Read each party's rows, by their ids."""
    del changed  # part of the cache's key: a changed file is read again
    source = JoinedSource.model_validate_json(fields)
    return {party: read_rows(source, party, file) for party, file in source.files.items()}


def read_rows(source: JoinedSource, party: str, file: Path) -> "pd.DataFrame":
    """Read one party's rows by their ids; raise DataError for ids that are missing or doubled."""
    frame = read_frame(file, source.missing, source.separator, as_text=source.id)
    columns = [str(each) for each in frame.columns]
    if source.id not in columns:
        raise DataError(
            f"{FIELD}.id: {file} has no column '{source.id}'{suggest(source.id, columns) or ','} "
            f"allowed: {format_list(columns, 20)}"
        )
    ids = frame[source.id]
    if ids.isna().any():
        raise DataError(f"{FIELD}.files.{party}: {int(ids.isna().sum())} rows have no id")
    ids = ids.astype(str).str.strip()
    if (twice := ids[ids.duplicated()]).size:
        raise DataError(
            f"{FIELD}.files.{party}: id '{twice.iloc[0]}' is there twice, and {len(twice)} rows in "
            "all repeat an id; keep one row of each"
        )
    frame = frame.set_index(ids).drop(columns=source.id)
    if not len(frame.columns):
        raise DataError(f"{FIELD}.files.{party}: {file} has no column beside the ids")
    return frame


@lru_cache(maxsize=4)
def _load_cached(fields: str, changed: tuple[int, ...]) -> DataSet:
    import pandas as pd

    source, frames = JoinedSource.model_validate_json(fields), _read_cached(fields, changed)
    party, target = source.split_target(frames)
    common = find_common_ids([frame.index for frame in frames.values()])
    together = pd.concat(
        [frame.loc[common].add_prefix(f"{name}.") for name, frame in frames.items()], axis=1
    )
    made = encode_joined(source, together, f"{party}.{target}")
    warnings = (*made.warnings, *_warn_of_left_out(frames, common))
    return replace(made, warnings=warnings, ids=digest_ids(common))


def load_portion(
    source: JoinedSource,
    party: str,
    file: Path,
    common: Sequence[str] | None = None,
    *,
    has_labels: bool,
) -> DataSet:
    """Read one party's own rows; without the `common` ids, only these may be among them.

    A party without labels gets classes that mean nothing, which are to be masked.
    """
    frame = read_rows(source, party, file).sort_index().add_prefix(f"{party}.")
    if common is not None:
        if missing := [each for each in common if each not in frame.index]:
            raise DataError(
                f"{FIELD}.files.{party}: {file} lacks {len(missing)} of the {len(common)} common "
                "ids; it has changed since they were aligned"
            )
        frame = frame.loc[list(common)]
    meant = (source.target, f"{party}.{source.target}")
    target = next((name for name in meant if name in frame), None)
    if target is None and has_labels:
        raise DataError(
            f"{FIELD}.target: {file} has no column '{source.target}', and {party} is the party "
            "with the labels; name another one as vertical.party"
        )
    if target is None:
        target = f"{party}.(none)"
        frame[target] = [str(row % 2) for row in range(len(frame))]  # two classes that are not read
    own = tuple(each for each in source.drop if each.startswith(f"{party}."))
    kept = None if source.categories is None else tuple(c for c in source.categories if c in frame)
    here = source.model_copy(update={"drop": own, "categories": kept})
    made = encode_joined(here, frame, target)
    return replace(made, ids=digest_ids([*frame.index]))


def digest_ids(ids: list[str]) -> str:
    """Return a digest of sorted ids, by which parties see whether they have the same ones."""
    return hashlib.blake2b("\n".join(ids).encode(), digest_size=16).hexdigest()


def find_common_ids(ids: "list[pd.Index[str]]") -> list[str]:
    """Return the ids that all parties have, sorted; raise DataError if there are fewer than two."""
    common = sorted(set[str].intersection(*(set(each) for each in ids)))
    if len(common) < 2:
        raise DataError(
            f"{FIELD}.id: the files have {len(common)} ids in common, and at least 2 are needed"
        )
    return common


def encode_joined(source: JoinedSource, frame: "pd.DataFrame", target: str) -> DataSet:
    """Draw test rows from the order of the rows, and encode all."""
    count = len(frame)
    order = numpy_rng_for(0, "table", "joined").permutation(count)
    held = min(count - 1, max(1, round(source.test_fraction * count)))
    test, train = sorted(order[:held]), sorted(order[held:])
    options = FrameOptions(target=target, categories=source.categories, drop=source.drop)
    return encode_frames("joined", frame.iloc[train], frame.iloc[test], options)


def _warn_of_left_out(frames: Mapping[str, "pd.DataFrame"], common: list[str]) -> Iterator[str]:
    """Yield a warning for each file with ids that not all files have."""
    for party, frame in frames.items():
        if lost := len(frame) - len(common):
            yield (
                f"scenario.{FIELD}.files.{party}: {lost:,} of {len(frame):,} rows are left out, as "
                "not all files have their ids"
            )
