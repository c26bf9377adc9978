"""A line of JSON per round: for dashboards, and whatever follows a file as it grows."""

import json
import math
from pathlib import Path
from typing import Literal

from pydantic import Field

from simsplit.observers.base import ObserverConfig
from simsplit.progress import Observer, Plan, Silent
from simsplit.results.directory import replace, writing


class JsonlConfig(ObserverConfig):
    """A line of JSON per round, in the run directory."""

    kind: Literal["jsonl"] = "jsonl"
    file: str = Field(default="rounds.jsonl", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\.jsonl$")
    """A plain file name that ends with .jsonl."""

    def build(self, path: Path) -> Observer:
        """The observer."""
        return Jsonl(path / self.file)


class Jsonl(Silent):
    """Holds as many lines as there are rounds: one that is told again replaces its line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: list[str] = []

    def begin(self, plan: Plan) -> None:
        """Take up the lines of rounds that are done; the file may have more, or a torn one."""
        held = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        self._keep(held.splitlines(keepends=True)[: plan.done])

    def round(self, row: dict[str, object], elapsed_s: float) -> None:
        """Write the round's line, behind those of the rounds before it."""
        told = {name: _plain(value) for name, value in row.items()} | {"elapsed_s": elapsed_s}
        line = json.dumps(told) + "\n"
        before = int(str(row["round"])) - 1
        if before < len(self.lines):
            self._keep(self.lines[:before])
        self.lines.append(line)
        with writing(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(line)

    def _keep(self, lines: list[str]) -> None:
        """Make these all that the file holds."""
        self.lines = lines
        with writing(self.file):
            replace(self.file, "".join(lines).encode())


def _plain(value: object) -> object:
    """JSON has neither infinity nor what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
