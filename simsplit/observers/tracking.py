"""Trackers are programs that store the metrics of many runs and draw them.

A tracker gets each round's metrics under the columns' names in `rounds.csv`, the spread over
clients of each column of `clients.csv`, the flagged clients, the scenario as flat fields, and the
picture of the inputs that attacks recovered. A round that runs again has the same metrics, so it is
stored once.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from simsplit.errors import install_command
from simsplit.foreign import read_facts
from simsplit.observers.observer import ObserverConfig
from simsplit.progress import Observer, RoundEnded, RunPlan, Status
from simsplit.results import SWEEP, load_saved_scenario
from simsplit.results.directory import replace
from simsplit.results.leak_table import PICTURE
from simsplit.rows import Cells, ClientRow

Field = str | int | float | bool

_NO_SPREAD = {"round", "client", "malicious", "barred"}
"""Columns of the `clients` table that identify a client; they have no spread."""

_FLAGGED = "_flagged"
"""The ending of the columns of detectors' verdicts, in the `clients` table."""


class TrackerConfig(ObserverConfig):
    """The base of a tracker's fields in a scenario."""

    @property
    def lacks(self) -> str:
        # The kind is also the name of the package, and of the extra that installs it.
        if find_spec(self.kind_name) is not None:
            return ""
        return f"needs the package {self.kind_name}: {install_command(self.kind_name)}"


class Tracker(Observer, ABC):
    """An observer that passes each round to a tracker once, even if the round runs again."""

    dispensable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep = find_sweep(path)
        """The sweep directory, if the run is a cell of a sweep."""
        self.known = self.first = 0
        """The last round that the tracker has, now and when the run began or resumed."""

    def begin(self, plan: RunPlan) -> None:
        """Open the tracker, or continue it after a resume."""
        with self.hush():
            self.known = self.first = self.open(plan)

    def round(self, ended: RoundEnded) -> None:
        """Pass a round on, unless the tracker has it."""
        if ended.number > self.known:
            figures = {**select_numbers(ended.row), **count_flagged(ended.clients)}
            with self.hush():
                self.keep(ended.number, figures, collect_spreads(ended.clients))
            self.known = ended.number

    def end(self, status: Status) -> None:
        """Pass on the picture of a finished run, and close the tracker."""
        picture = self.path / PICTURE
        with self.hush():
            if status == "finished" and self.known > self.first and picture.exists():
                self.show(picture)
            self.close(status)

    def hush(self) -> AbstractContextManager[None]:
        """Open a context without the tracker's own messages."""
        return nullcontext()

    @abstractmethod
    def open(self, plan: RunPlan) -> int:
        """Begin or continue the run, and return the last round that the tracker has."""

    @abstractmethod
    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        """Store a round's metrics, and the values over clients of each column."""

    @abstractmethod
    def show(self, picture: Path) -> None:
        """Store a picture of the run."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Write what is pending, and store how the run ended."""


def select_numbers(row: Cells) -> dict[str, float]:
    """Return the numeric values of a row, without the round."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name != "round"
    }


def collect_spreads(clients: Sequence[ClientRow]) -> dict[str, list[float]]:
    """Return each column's finite values, over the clients that have one."""
    columns: dict[str, list[float]] = {}
    for row in clients:
        for name, value in select_numbers(row).items():
            if name not in _NO_SPREAD and math.isfinite(value):
                columns.setdefault(name, []).append(value)
    return columns


def count_flagged(clients: Sequence[ClientRow]) -> dict[str, float]:
    """Count by detector its flagged clients and the malicious ones; 1 for each flagged client."""
    counts: dict[str, float] = {}
    for row in clients:
        for name, value in select_numbers(row).items():
            if not name.endswith(_FLAGGED) or math.isnan(value):
                continue
            title = f"flagged/{name.removesuffix(_FLAGGED)}"
            bad = value if row.malicious else 0.0
            counts[title] = counts.get(title, 0.0) + value
            counts[f"{title}/malicious"] = counts.get(f"{title}/malicious", 0.0) + bad
            if value:
                counts[f"{title}/client_{row.client}"] = 1.0
    return counts


def flatten_scenario(path: Path) -> dict[str, Field]:
    """Return a run's scenario as flat fields, `method.0.ratio` -> 8; plain lists become text."""
    return dict(_flatten(load_saved_scenario(path), ""))


def _flatten(value: Any, name: str) -> list[tuple[str, Field]]:  # noqa: ANN401 - plain values
    if isinstance(value, dict) and value:
        pairs = [(f"{name}.{key}".strip("."), each) for key, each in value.items()]
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        pairs = [(f"{name}.{index}", each) for index, each in enumerate(value)]
    elif isinstance(value, str | int | float):
        return [(name, value)]
    else:
        return [(name, json.dumps(value))]
    return [field for below, each in pairs for field in _flatten(each, below)]


def find_sweep(path: Path) -> Path | None:
    """Return the sweep directory of a run that is a cell; None for any other run."""
    folder = path.absolute().parent
    return folder if (folder / SWEEP).exists() else None


def make_title(path: Path) -> str:
    """Return a run's name in a tracker: its folder, after the sweep's folder if it has one."""
    sweep = find_sweep(path)
    return f"{sweep.name}/{path.name}" if sweep else path.absolute().name


def read_note(file: Path) -> dict[str, Any]:
    """Read the note by which a tracker finds its run after a resume; empty if there is none."""
    try:
        return read_facts(file)
    except (OSError, ValueError):
        return {}


def write_note(file: Path, **values: object) -> None:
    """Replace a tracker's note in the run directory."""
    replace(file, (json.dumps(values) + "\n").encode())
