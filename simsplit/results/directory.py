"""A run writes its directory here: tables that only grow while the run lasts, which `Run` reads.

Tables are CSV, because rows can be appended, a torn last line does no harm, and pandas reads it in
one call. Floats are written so that they read back bit for bit. Wall-clock times are in a table of
their own (`timing`). Every other table depends on the scenario only, so the tables of a resumed run
equal those of a run that was never stopped.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from simsplit.errors import RunError, RunFailedError
from simsplit.foreign import refuse_link
from simsplit.rows import Cells

SCENARIO = "scenario.yaml"
SUMMARY = "summary.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
TUNED = "tuned.json"
HOLDINGS = "holdings.csv"
SOCKET = "socket.csv"
EXPELLED = "expelled.csv"
CHECKPOINTS = "checkpoints"
TRACEBACK = "traceback.txt"
CONTRIBUTIONS = "contributions"
"""The folder of what each client changes of the score."""
AFTERWARDS = "attacks/*"
"""Folders of attacks on the finished run."""


class RunWriter:
    """A writer of a run directory; it turns a failing disk into an error that says what is kept."""

    def __init__(self, path: Path, columns: Mapping[str, Iterable[str]]) -> None:
        self.path = path
        self.columns = {table: tuple(names) for table, names in columns.items()}

    def start(self, scenario: str, environment: Cells) -> None:
        """Create the folder, the files that describe the run, and tables without rows."""
        make_directory(self.path)
        with writing(self.path):
            make_folder(self.path / CHECKPOINTS)
        self.describe(scenario)
        self.write_json(ENVIRONMENT, environment)
        for table, names in self.columns.items():
            with writing(self._file(table)):
                refuse_link(self._file(table))
                self._file(table).unlink(missing_ok=True)  # it may have a second name elsewhere
                self._file(table).write_bytes(_encode_header(names))

    def describe(self, scenario: str) -> None:
        """Save the resolved scenario, which replays the run."""
        self.write_text(SCENARIO, scenario)

    def append(self, table: str, rows: Iterable[Cells]) -> None:
        """Append rows to a table; a column that a row lacks stays empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns[table], restval="", lineterminator="\n")
        writer.writerows(rows)
        with writing(self._file(table)):
            append(self._file(table), text.getvalue())

    def sync_tables(self) -> dict[str, int]:
        """Flush all tables to the disk, and return their sizes."""
        for table in self.columns:
            with writing(self._file(table)), self._file(table).open("rb") as file:
                os.fsync(file.fileno())
        return {table: self._file(table).stat().st_size for table in self.columns}

    @property
    def header_sizes(self) -> dict[str, int]:
        """The sizes of the tables without rows."""
        return {table: len(_encode_header(names)) for table, names in self.columns.items()}

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Replace each table by its beginning, of the size that a checkpoint has saved."""
        for table, names in self.columns.items():
            file = self._file(table)
            if table not in sizes or not file.exists() or file.stat().st_size < sizes[table]:
                raise RunError(
                    f"{file} is shorter than when its checkpoint was written; cannot resume"
                )
            with writing(file):
                content = file.read_bytes()
            if not content.startswith(_encode_header(names)):
                raise RunError(f"{file} has other columns than the run's; cannot resume")
            # Never truncated in place: the file may have a second name, outside of this run.
            with writing(file):
                replace(file, content[: sizes[table]])

    def write_text(self, name: str, text: str) -> None:
        """Write a small file, completely or not at all."""
        with writing(self.path / name):
            replace(self.path / name, text.encode())

    def write_json(self, name: str, values: Cells) -> None:
        """Write values as a small JSON file, completely or not at all."""
        self.write_text(name, json.dumps(values, indent=2) + "\n")

    def remove(self, name: str) -> None:
        """Remove a small file, or a link in its place, if there is one."""
        with writing(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def write_table(self, table: str, rows: Sequence[Cells]) -> None:
        """Write a table that exists only at a run's end, completely or not at all."""
        with writing(self._file(table)):
            replace(self._file(table), encode_csv(rows))

    def _file(self, table: str) -> Path:
        return self.path / f"{table}.csv"


def _encode_header(names: Iterable[str]) -> bytes:
    return (",".join(names) + "\n").encode()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Open a context in which a failing write is an error that names the file and the cause."""
    try:
        yield
    except OSError as error:
        raise RunFailedError(
            f"cannot write {path}: {error.strerror or error}. The last checkpoint is kept; make "
            "room (or fix the folder) and start again with --resume"
        ) from error


def make_directory(path: Path) -> None:
    """Create a run or sweep directory, which the user chose; raise RunError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the folder {path}: {error.strerror or error}; give another --out"
        ) from None


def make_folder(folder: Path) -> None:
    """Create a folder in a run directory, or use the one that is there unless it is a link."""
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def append(file: Path, text: str) -> None:
    """Append text to a file, which is created if there is none."""
    refuse_link(file)
    with file.open("a", encoding="utf-8", newline="") as opened:
        opened.write(text)


def replace(target: Path, content: bytes) -> None:
    """Write `content` to `target` atomically and durably; raise RunError if it is a link."""
    refuse_link(target)
    partial = target.with_name(target.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def encode_csv(rows: Sequence[Cells], digits: int | None = None) -> bytes:
    """Encode at least one row as CSV; floats have all their digits, or `digits` of them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        rounded = {
            name: f"{value:.{digits}g}"
            for name, value in row.items()
            if digits and isinstance(value, float)
        }
        writer.writerow({**row, **rounded})
    return text.getvalue().encode()
