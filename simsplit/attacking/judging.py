"""A judge of attacks knows the truth, and compares it with what the attacks recover."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from simsplit.assembly import Assembly
from simsplit.attacks import Attack
from simsplit.data import Prepared
from simsplit.results.directory import encode_csv
from simsplit.results.kept import CURVES, RoundFiles
from simsplit.results.recovers import RECOVERS
from simsplit.scenario import Scenario

Row = dict[str, object]
OneAttack = TypeVar("OneAttack", bound=Attack)


@dataclass
class KindScores:
    """The scores of the attacks that recover one kind of things."""

    rows: list[Row] = field(default_factory=list)
    """Rows of the kind's table."""
    files: dict[RoundFiles, bytes] = field(default_factory=dict)
    """What was recovered, as files of the run directory."""


@dataclass
class Judgement:
    """The scores of all attacks after a round."""

    scores: dict[str, KindScores] = field(default_factory=dict)
    """Scores by the kind of things that attacks recover."""
    curves: list[Row] = field(default_factory=list)
    """Figures of each attack with a part of its iterations."""

    @property
    def tables(self) -> dict[str, list[Row]]:
        """The rows of the run's tables that attacks fill."""
        return {RECOVERS[kind].table: each.rows for kind, each in self.scores.items()}

    def save(self, path: Path, number: int) -> None:
        """Save what was recovered after a round in a run directory."""
        for each in self.scores.values():
            for files, content in each.files.items():
                files.save(path, number, content)
        if self.curves:
            CURVES.save(path, number, encode_csv(self.curves))


class AttackJudge(ABC, Generic[OneAttack]):
    """Base class of judges, which score the attacks that recover one kind of things."""

    converges: ClassVar[bool] = False
    """Whether `targets.curve` scores its attacks with a part of their iterations too."""

    @abstractmethod
    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        """Take the truth from the data; `parts` of the run can ask clients for more of it."""

    @staticmethod
    @abstractmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return the columns of the kind's table."""

    def begin(self, number: int) -> None:
        """Begin the judgement of a round, before any attack works."""
        del number

    def inform(self, attack: OneAttack) -> None:
        """Give an attack what it may know beside packets of the targets, before it works."""
        del attack

    @abstractmethod
    def score(self, number: int, attacks: Mapping[str, OneAttack]) -> KindScores:
        """Return the scores of what the attacks recovered in a round."""
