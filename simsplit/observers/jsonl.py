"""A file gets one line of JSON per round, for dashboards and programs that follow it."""

import json
import math
from pathlib import Path
from typing import Literal

from pydantic import Field

from simsplit.foreign import MOST_TABLE, read_text
from simsplit.observers.observer import ObserverConfig
from simsplit.progress import Observer, RoundEnded, RunPlan
from simsplit.results.directory import append, replace, writing
from simsplit.results.read_tables import explain_read_errors


class JsonlConfig(ObserverConfig):
    """One line of JSON per round, in a file of the run directory."""

    kind: Literal["jsonl"] = "jsonl"
    file: str = Field(default="rounds.jsonl", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\.jsonl$")
    """The file's name in the run directory, without folders; it must end with .jsonl."""

    def build(self, path: Path) -> Observer:
        return Jsonl(path / self.file)


class Jsonl(Observer):
    """A writer of one line per round; a round that runs again replaces its line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[int, str] = {}
        """The lines by round, in order."""

    def begin(self, plan: RunPlan) -> None:
        """Keep the lines of finished rounds; drop later ones, and an incomplete last line."""
        lines: dict[int, str] = {}
        if self.file.exists():
            with explain_read_errors(self.file):
                text = read_text(self.file, MOST_TABLE)
                whole = text[: text.rfind("\n") + 1].splitlines(keepends=True)
                lines = {int(json.loads(line)["round"]): line for line in whole}
        self._rewrite(lines, plan.done)

    def round(self, ended: RoundEnded) -> None:
        """Append the round's line."""
        row = {}
        for name, value in ended.row.items():  # JSON has no infinity and no NaN
            known = not isinstance(value, float) or math.isfinite(value)
            row[name] = value if known else None
        number, line = ended.number, json.dumps(row | {"elapsed_s": ended.elapsed_s}) + "\n"
        if number <= max(self.lines, default=0):
            self._rewrite(self.lines, number - 1)
        self.lines[number] = line
        with writing(self.file):
            append(self.file, line)

    def _rewrite(self, lines: dict[int, str], last: int) -> None:
        """Rewrite the file with the lines up to a round."""
        self.lines = {number: line for number, line in lines.items() if number <= last}
        with writing(self.file):
            replace(self.file, "".join(self.lines.values()).encode())
