"""What a scenario says of an observer: something that watches a run and changes nothing of it.

Observers are no part of what a run computes, so a resumed run may have others. After a resume, or
when a host was lost, training goes on from an earlier round: an observer that keeps a record is
told of some rounds twice, and the later telling counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.progress import Observer


class ObserverConfig(Config, ABC):
    """Base of an observer's fields in a scenario."""

    @property
    def lacks(self) -> str:
        """What it needs and this machine does not have, and how to get it; empty: nothing."""
        return ""

    @abstractmethod
    def build(self, path: Path) -> Observer:
        """The observer of a run; the run directory `path` may not exist yet."""


def refuse_lacking(observers: Sequence[ObserverConfig]) -> None:
    """ScenarioError for the first of a scenario's observers that cannot work on this machine."""
    for index, config in enumerate(observers):
        if config.lacks:
            raise ScenarioError(f"observers.{index}.kind", config.lacks)
