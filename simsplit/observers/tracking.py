"""What trackers have in common: programs that keep the figures of many runs, and draw them.

What a tracker has of a run is figures per round under the columns' names in `rounds.csv`, the
spread over clients of each column of `clients.csv`, who was flagged, the scenario as flat fields,
and the picture of what attacks recovered. A round that is told again has the same figures, so it is
kept once.
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
from simsplit.observers.base import ObserverConfig
from simsplit.progress import Observer, Plan, RoundTold, Status
from simsplit.results import SWEEP, saved_scenario
from simsplit.results.directory import replace
from simsplit.results.input_results import PICTURE
from simsplit.rows import Cells, ClientRow

Field = str | int | float | bool

_NO_SPREAD = {"round", "client", "malicious", "barred"}
"""Columns of the `clients` table that say who, and not how it went."""

_FLAGGED = "_flagged"
"""How columns of detectors' verdicts end, in the `clients` table."""


class TrackerConfig(ObserverConfig):
    """Base of a tracker's fields."""

    @property
    def lacks(self) -> str:
        # The kind is also the name of the package, and of the extra that installs it.
        if find_spec(self.word) is not None:
            return ""
        return f"needs the package {self.word}: {install_command(self.word)}"


class Tracker(Observer, ABC):
    """Passes each round to a tracker once, whatever happens to the run."""

    dispensable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep = sweep_of(path)
        """The sweep directory that the run is a cell of."""
        self.known = self.first = 0
        """The last round that the tracker has, now and at the beginning."""

    def begin(self, plan: Plan) -> None:
        """Open the tracker, or go on where it was left."""
        with self.hush():
            self.known = self.first = self.open(plan)

    def round(self, told: RoundTold) -> None:
        """Pass a round on, unless the tracker has it."""
        if told.number > self.known:
            figures = {**numbers(told.row), **verdicts(told.clients)}
            with self.hush():
                self.keep(told.number, figures, spreads(told.clients))
            self.known = told.number

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
    def open(self, plan: Plan) -> int:
        """Begin, or go on, and return the last round that the tracker has already."""

    @abstractmethod
    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        """Keep a round's figures, and each figure's values over clients."""

    @abstractmethod
    def show(self, picture: Path) -> None:
        """Store one of the run's figures beside its numbers."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Write what is not written, and say how the run ended."""


def numbers(row: Cells) -> dict[str, float]:
    """The numbers of a row, without that of the round."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name != "round"
    }


def spreads(clients: Sequence[ClientRow]) -> dict[str, list[float]]:
    """Each column's finite values over the clients that have one."""
    columns: dict[str, list[float]] = {}
    for row in clients:
        for name, value in numbers(row).items():
            if name not in _NO_SPREAD and math.isfinite(value):
                columns.setdefault(name, []).append(value)
    return columns


def verdicts(clients: Sequence[ClientRow]) -> dict[str, float]:
    """Of each detector how many clients it flagged, how many of these are malicious, and a 1 for
    each of them by number.
    """
    found: dict[str, float] = {}
    for row in clients:
        for name, value in numbers(row).items():
            if not name.endswith(_FLAGGED) or math.isnan(value):
                continue
            title = f"flagged/{name.removesuffix(_FLAGGED)}"
            bad = value if row.malicious else 0.0
            found[title] = found.get(title, 0.0) + value
            found[f"{title}/malicious"] = found.get(f"{title}/malicious", 0.0) + bad
            if value:
                found[f"{title}/client_{row.client}"] = 1.0
    return found


def fields_of(path: Path) -> dict[str, Field]:
    """A run's scenario as flat fields: `method.0.ratio` -> 8; lists of plain values as text."""
    return dict(_flat(saved_scenario(path), ""))


def _flat(value: Any, name: str) -> list[tuple[str, Field]]:  # noqa: ANN401 - plain values
    if isinstance(value, dict) and value:
        pairs = [(f"{name}.{key}".strip("."), each) for key, each in value.items()]
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        pairs = [(f"{name}.{index}", each) for index, each in enumerate(value)]
    elif isinstance(value, str | int | float):
        return [(name, value)]
    else:
        return [(name, json.dumps(value))]
    return [told for below, each in pairs for told in _flat(each, below)]


def sweep_of(path: Path) -> Path | None:
    """Return the sweep directory that a run is a cell of."""
    folder = path.absolute().parent
    return folder if (folder / SWEEP).exists() else None


def title_of(path: Path) -> str:
    """Return a run's name among others: its folder, with the sweep's in front."""
    sweep = sweep_of(path)
    return f"{sweep.name}/{path.name}" if sweep else path.absolute().name


class Note:
    """What a tracker has to know again after a resume, in a small file of the run directory."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> dict[str, Any]:
        """As it was written; empty if it never was."""
        try:
            told: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told

    def write(self, **told: object) -> None:
        """Replace what it said."""
        replace(self.file, (json.dumps(told) + "\n").encode())
