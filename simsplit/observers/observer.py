"""A scenario configures observers, which watch a run and change nothing in it.

Results do not depend on observers, so a resumed run may have other ones. After a resume, or after a
host was lost, training continues from an earlier round. An observer then gets some rounds twice,
and the later one counts.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from simsplit.config import Config
from simsplit.progress import Observer


class ObserverConfig(Config, ABC):
    """The base of an observer's fields in a scenario."""

    reads_packets: ClassVar[bool] = False
    """Whether it needs each packet of training."""

    @property
    def lacks(self) -> str:
        """The package that this machine lacks, and how to install it; empty if none is missing."""
        return ""

    @abstractmethod
    def build(self, path: Path) -> Observer:
        """Build the observer of a run; the run directory `path` may not exist yet."""
