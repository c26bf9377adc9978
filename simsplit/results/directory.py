"""Writes the run directory: tidy tables that only grow while a run lasts. `Run` reads them back.

CSV, because it can be appended to, survives a torn last line, and pandas reads it in one; floats
are written so that they read back bit for bit. Wall-clock times stand in a table of their own
(`timing`): every other table is a pure function of the scenario, so a resumed run's equal those
of a run that was never stopped.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from simsplit.errors import RunError, RunFailedError
from simsplit.rows import Cells

SCENARIO = "scenario.yaml"
SUMMARY = "summary.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
HOLDINGS = "holdings.csv"
SOCKET = "socket.csv"
CHECKPOINTS = "checkpoints"
TRACEBACK = "traceback.txt"
AFTERWARDS = "attacks/*"
"""Folders of attacks on a run that was over."""


class RunWriter:
    """Appends to a run directory; a failing disk becomes an error that says what is kept."""

    def __init__(self, path: Path, columns: Mapping[str, Iterable[str]]) -> None:
        self.path = path
        self.columns = {table: tuple(names) for table, names in columns.items()}

    def start(self, scenario: str, environment: Cells) -> None:
        """Make the folder and what describes the run."""
        try:
            (self.path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot make the folder {self.path}: {error.strerror or error}; give another --out"
            ) from None
        self.describe(scenario)
        self.write_json(ENVIRONMENT, environment)
        for table, names in self.columns.items():
            with writing(self._file(table)):
                self._file(table).write_bytes(_header(names))

    def describe(self, scenario: str) -> None:
        """Save the resolved scenario, which replays the run."""
        with writing(self.path / SCENARIO):
            replace(self.path / SCENARIO, scenario.encode())

    def append(self, table: str, rows: Iterable[Cells]) -> None:
        """Add rows to a table; a column that a row lacks stays empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns[table], restval="", lineterminator="\n")
        writer.writerows(rows)
        with writing(self._file(table)), self._file(table).open("a", encoding="utf-8") as file:
            file.write(text.getvalue())

    def sizes(self) -> dict[str, int]:
        """Every table's size now, after making sure that it is on the disk."""
        for table in self.columns:
            with writing(self._file(table)), self._file(table).open("rb") as file:
                os.fsync(file.fileno())
        return {table: self._file(table).stat().st_size for table in self.columns}

    def empty(self) -> dict[str, int]:
        """The sizes of tables that have a header and no rows."""
        return {table: len(_header(names)) for table, names in self.columns.items()}

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Cut the tables back to the sizes that a checkpoint remembers."""
        for table in self.columns:
            file = self._file(table)
            if not file.exists() or file.stat().st_size < sizes.get(table, 0):
                raise RunError(
                    f"{file} is shorter than when its checkpoint was written; cannot resume"
                )
            with writing(file):
                os.truncate(file, sizes[table])

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
        with writing(self.path / name):
            replace(self.path / name, text.encode())

    def write_json(self, name: str, values: Cells) -> None:
        """Write a small file whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2) + "\n")

    def write_table(self, table: str, rows: Sequence[Cells]) -> None:
        """Write a table of a run's end, whole or not at all."""
        with writing(self._file(table)):
            replace(self._file(table), encode_csv(rows))

    def _file(self, table: str) -> Path:
        return self.path / f"{table}.csv"


def _header(names: Iterable[str]) -> bytes:
    return (",".join(names) + "\n").encode()


class writing:  # noqa: N801 - reads as a verb: `with writing(path):`
    """A context in which a failing write becomes an error that names the file and the cause."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing is prepared; errors are handled on exit."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Turn an OSError into a RunFailedError that names the file."""
        if isinstance(error, OSError):
            raise RunFailedError(
                f"cannot write {self.path}: {error.strerror or error}. The last checkpoint is "
                "kept; make room (or fix the folder) and start again with --resume"
            ) from error


def replace(target: Path, content: bytes) -> None:
    """Put `content` at `target` atomically and durably."""
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def encode_csv(rows: Sequence[Cells], digits: int | None = None) -> bytes:
    """Encode rows, of which there is at least one; floats in full, or to so many digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value, digits) for name, value in row.items()})
    return text.getvalue().encode()


def _cell(value: object, digits: int | None) -> object:
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value
