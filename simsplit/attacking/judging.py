"""What a judge of attacks is: it alone holds what they recover against the truth."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from simsplit.scenario import Scenario

Row = dict[str, object]


@dataclass
class Judgement:
    """What attacks came to after a round."""

    rows: list[Row] = field(default_factory=list)
    """One an attack and target."""
    images: dict[str, Tensor] = field(default_factory=dict)
    """Pixels by attack, and the originals."""
    texts: list[dict[str, object]] = field(default_factory=list)
    """Recovered texts beside the private ones."""


class Judge(ABC):
    """Scores what attacks recover of a run's targets."""

    @staticmethod
    @abstractmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Of the `recovered` table."""

    @abstractmethod
    def score(
        self, number: int, recovered: Mapping[str, Tensor], own: Sequence[Tensor | None]
    ) -> Judgement:
        """After a round; `own` says, batch by batch, which tokens were the targets' own."""

    @abstractmethod
    def save(self, path: Path, number: int, judged: Judgement) -> None:
        """Keep what was recovered in a run directory."""
