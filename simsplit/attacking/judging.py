"""What a judge of attacks is: it alone holds what they recover against the truth."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from simsplit.attacks.base import Guesses
from simsplit.scenario import Scenario

Row = dict[str, object]


@dataclass
class Judgement:
    """The scores of all attacks after a round."""

    rows: list[Row] = field(default_factory=list)
    """One row for each attack and target."""
    images: dict[str, Tensor] = field(default_factory=dict)
    """Pixels by attack, and the originals."""
    texts: list[dict[str, object]] = field(default_factory=list)
    """Recovered texts beside the private ones."""
    curves: list[Row] = field(default_factory=list)
    """Figures of each attack with a part of its iterations."""
    labels: list[Row] = field(default_factory=list)
    """One row for each attack on labels, view and adapter, and the floors."""
    components: list[Row] = field(default_factory=list)
    """The two leading principal components of what attacks on labels saw."""

    sessions: list[Row] = field(default_factory=list)
    """One row for each attack on sessions, session and side, the floors, and what was written."""
    dialogues: list[Row] = field(default_factory=list)
    """Prompts and responses as they were read, beside the private ones."""

    @property
    def tables(self) -> dict[str, list[Row]]:
        """The rows of the run's tables that attacks fill."""
        return {"recovered": self.rows, "labels": self.labels, "sessions": self.sessions}


class Judge(ABC):
    """Scores what attacks recover of a run's targets."""

    @staticmethod
    @abstractmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Columns of the `recovered` table."""

    @abstractmethod
    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> Judgement:
        """Score a round; `own` masks, batch by batch, the targets' own tokens."""

    @abstractmethod
    def save(self, path: Path, number: int, judged: Judgement) -> None:
        """Save what was recovered in a run directory."""
