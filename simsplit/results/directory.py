"""The run directory: tidy tables that only grow while a run lasts, and `Run`, which reads them
back.

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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simsplit.errors import RunError, RunFailedError, counted, listed

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, object]

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

    def start(self, scenario: str, environment: Row) -> None:
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

    def append(self, table: str, rows: Iterable[Row]) -> None:
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

    def write_json(self, name: str, values: Row) -> None:
        """Write a small file whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2) + "\n")

    def write_table(self, table: str, rows: Sequence[Row]) -> None:
        """Write a table of a run's end, whole or not at all."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write_text(f"{table}.csv", text.getvalue())

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


class Run:
    """A run directory, read: tables as DataFrames, the summary as a dict.

    >>> Run.load("runs/first").rounds.plot(x="round", y="test_accuracy")  # doctest: +SKIP
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        try:
            told = self.summary
            how = f"{told['status']}, {told['rounds_done']} of {counted(told['rounds'], 'round')}"
        except (RunError, KeyError):
            how = "without a summary"
        return f"<Run {self.path}: {how}>"

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Open a run directory; RunError where there is none."""
        path = Path(path)
        if not (path / SCENARIO).is_file():
            runs = sorted(str(found.parent) for found in path.glob(f"*/{SCENARIO}"))
            held = f"; it holds runs: {listed(runs)}" if runs else ""
            raise RunError(f"{path} is no run directory (no {SCENARIO} in it){held}")
        return cls(path)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round: losses, figures of each evaluated split, bytes."""
        return self._table("rounds")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per client and round."""
        return self._table("clients")

    @cached_property
    def wire(self) -> "pd.DataFrame":
        """One row per round, client, phase and leg: packets and bytes."""
        return self._table("wire")

    @cached_property
    def socket(self) -> "pd.DataFrame":
        """Of a deployed run, one row per round, client, call and leg: the frames that crossed."""
        import pandas as pd

        if not (self.path / SOCKET).exists():
            return pd.DataFrame()
        return _read_table(self.path / SOCKET)

    @cached_property
    def holdings(self) -> "pd.DataFrame":
        """One row per client and class that it has: how many samples."""
        return self._table("holdings")

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """The resolved scenario as plain values; `load_scenario(run.path / "scenario.yaml")` makes
        a Scenario of it.
        """
        return saved_scenario(self.path)

    @cached_property
    def detections(self) -> "pd.DataFrame":
        """One row per round and detector: whom it flagged, and how good it was; may be empty."""
        import pandas as pd

        if not (self.path / "detections.csv").exists():
            return pd.DataFrame()
        return self._table("detections")

    @cached_property
    def recovered(self) -> "pd.DataFrame":
        """One row per judged round, attack and target: how near the attack came; may be empty."""
        import pandas as pd

        tables = self._of_attacks("recovered")
        if not tables:
            return pd.DataFrame()
        together = pd.concat(tables)
        target = next(name for name in ("text", "row", "image") if name in together)
        # each table has the guesses that need no attack, of the same targets
        return together.drop_duplicates(["round", "attack", target], ignore_index=True)

    @cached_property
    def labels(self) -> "pd.DataFrame":
        """One row per judged round, attack on labels, view and adapter, and the floors; may be
        empty.
        """
        import pandas as pd

        tables = self._of_attacks("labels")
        if not tables:
            return pd.DataFrame()
        # the floors of the same targets are in each table
        place = ["round", "attack", "view", "adapter", "figure", "samples", "known"]
        together = pd.concat(tables).drop_duplicates(place, ignore_index=True)
        return together.astype({"adapter": "Int64"})  # whole, and none of floors

    @cached_property
    def sessions(self) -> "pd.DataFrame":
        """One row per judged round, attack on sessions, session and side (prompt, response, both):
        what was read; the floors, and what was written. May be empty.
        """
        import pandas as pd

        tables = self._of_attacks("sessions")
        if not tables:
            return pd.DataFrame()
        place = ["round", "attack", "session", "side"]
        return pd.concat(tables).drop_duplicates(place, ignore_index=True)

    @cached_property
    def attacks(self) -> "pd.DataFrame":
        """One row per judged round and attack: means over targets; may be empty."""
        if self.recovered.empty:
            return self.recovered
        figures = self.recovered.drop(columns=["image", "text", "row", "label"], errors="ignore")
        return figures.groupby(["round", "attack"], sort=False, as_index=False).mean()

    @cached_property
    def timing(self) -> "pd.DataFrame":
        """One row per round: wall-clock seconds."""
        return self._table("timing")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the run came to; its `status` says whether it finished."""
        return self._json(SUMMARY)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Its data in words: samples per split, names of classes, means and deviations."""
        return self._json(DATA)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Where and with what it ran."""
        return self._json(ENVIRONMENT)

    def _of_attacks(self, name: str) -> "list[pd.DataFrame]":
        """A table of the run's attacks, and of those that were made when it was over."""
        afterwards = sorted(self.path.glob(f"{AFTERWARDS}/{name}.csv"))
        return [_read_table(file) for file in (*self.path.glob(f"{name}.csv"), *afterwards)]

    def _table(self, name: str) -> "pd.DataFrame":
        return _read_table(self.path / f"{name}.csv")

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise RunError(f"cannot read {file}: {error}") from None
        return values


def _read_table(file: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror}") from None
    whole = text[: text.rfind("\n") + 1]  # a run killed while writing leaves a torn last line
    if not whole:
        raise RunError(f"cannot read {file}: it has no header")
    # pandas 3 reads floats back exactly by itself, and warns at being told to
    precision: Literal["round_trip"] | None
    precision = "round_trip" if int(pd.__version__.split(".")[0]) < 3 else None
    return pd.read_csv(io.StringIO(whole), float_precision=precision)


def saved_scenario(path: Path) -> dict[str, Any]:
    """The plain values of a run directory's scenario."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it
    text = (path / SCENARIO).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.load(text, Loader=loader)
    return values
