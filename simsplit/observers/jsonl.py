"""A line of JSON per round: for dashboards, and whatever follows a file as it grows."""

import json
import math
from pathlib import Path
from typing import Literal

from pydantic import Field

from simsplit.observers.base import ObserverConfig
from simsplit.progress import Observer, Plan, RoundTold
from simsplit.results.directory import replace, writing


class JsonlConfig(ObserverConfig):
    """A line of JSON per round, in the run directory."""

    kind: Literal["jsonl"] = "jsonl"
    file: str = Field(default="rounds.jsonl", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\.jsonl$")
    """A plain file name that ends with .jsonl."""

    def build(self, path: Path) -> Observer:
        return Jsonl(path / self.file)


class Jsonl(Observer):
    """Keeps one line per round; a round that is run again replaces its line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[int, str] = {}
        """By round, in order."""

    def begin(self, plan: Plan) -> None:
        """Keep the lines of rounds that are done; drop later ones, and a torn last line."""
        held = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        whole = held[: held.rfind("\n") + 1].splitlines(keepends=True)
        self._keep({json.loads(line)["round"]: line for line in whole}, plan.done)

    def round(self, told: RoundTold) -> None:
        """Append the round's line."""
        row = {name: _plain(value) for name, value in told.row.items()}
        number, line = told.number, json.dumps(row | {"elapsed_s": told.elapsed_s}) + "\n"
        if number <= max(self.lines, default=0):
            self._keep(self.lines, number - 1)
        self.lines[number] = line
        with writing(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(line)

    def _keep(self, lines: dict[int, str], last: int) -> None:
        """Rewrite the file with the lines up to a round."""
        self.lines = {number: line for number, line in lines.items() if number <= last}
        with writing(self.file):
            replace(self.file, "".join(self.lines.values()).encode())


def _plain(value: object) -> object:
    """JSON has neither infinity nor what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
