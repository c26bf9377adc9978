"""An observer: a file as old as the last sign of life, for a service that restarts dead jobs."""

import time
from typing import Literal

from pydantic import Field

from simsplit.observers import ObserverConfig
from simsplit.progress import Observer


class HeartbeatConfig(ObserverConfig):
    """Writes the round to the file `alive` of the run directory, now and then."""

    kind: Literal["heartbeat"] = "heartbeat"
    every_s: float = Field(default=10.0, ge=0)
    """Seconds between two signs of life within a round."""

    def build(self, path):
        """Build the observer; `path` is the run directory."""
        return Heartbeat(path / "alive", self.every_s)


class Heartbeat(Observer):
    """An observer that overrides two hooks; the other hooks of its base class do nothing."""

    def __init__(self, file, every_s):
        self.file, self.every_s, self.number, self.last = file, every_s, 0, 0.0

    def step(self, done, total):
        """Write the current round, unless the file is recent; called after every step."""
        if time.monotonic() - self.last > self.every_s:
            self.last = time.monotonic()
            self.file.write_text(f"in round {self.number + 1}\n")

    def round(self, ended):
        """Write the round: `ended.row` is in rounds.csv, `ended.clients` are in clients.csv."""
        self.number = ended.number
        self.file.write_text(f"after round {self.number}\n")


OBSERVERS = {"heartbeat": HeartbeatConfig}
