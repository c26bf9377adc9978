"""A judge of attacks knows the truth, and compares it with what the attacks recover."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from simsplit.assembly import Assembly
from simsplit.attacks import Attack
from simsplit.data import Prepared
from simsplit.metrics.leaks import Interval
from simsplit.results.directory import encode_csv
from simsplit.results.leak_table import Row
from simsplit.results.recovered_files import CURVES, RoundFiles
from simsplit.scenario import Scenario

OneAttack = TypeVar("OneAttack", bound=Attack)


def make_cells(metric: str, figure: Interval, samples: int) -> Row:
    """Return the cells of a row that say how large a figure of so many samples is."""
    return {"metric": metric, **figure._asdict(), "samples": samples}


@dataclass
class KindScores:
    """The scores of the attacks that recover one kind of things."""

    rows: list[Row] = field(default_factory=list)
    """Rows of the table `leaks`."""
    files: dict[RoundFiles, bytes] = field(default_factory=dict)
    """What was recovered, as files of the run directory."""


@dataclass
class Judgement:
    """The scores of all attacks after a round."""

    scores: dict[str, KindScores] = field(default_factory=dict)
    """Scores by what attacks name as what they recover."""
    curves: list[Row] = field(default_factory=list)
    """Figures of each attack with a part of its iterations."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know, a sentence each."""

    @property
    def leaks(self) -> list[Row]:
        """The rows of the table `leaks`."""
        return [row for each in self.scores.values() for row in each.rows]

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

    def begin(self, number: int) -> None:
        """Begin the judgement of a round, before any attack works."""
        del number

    def inform(self, attack: OneAttack) -> None:
        """Give an attack what it may know beside packets of the targets, before it works."""
        del attack

    @abstractmethod
    def score(self, number: int, attacks: Mapping[str, OneAttack]) -> KindScores:
        """Return the scores of what the attacks recovered in a round."""
