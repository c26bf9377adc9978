"""A scorer compares recovered inputs of one kind of data with the truth, for the judge."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from simsplit.attacking.judging import KindScores
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.scenario import Scenario


class InputScorer(ABC):
    """Base class of scorers, which compare recovered inputs with the targets."""

    @abstractmethod
    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        """Take from a scenario which samples are targets, and how they are scored."""

    @staticmethod
    @abstractmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return the columns of the `recovered` table."""

    @abstractmethod
    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        """Return the scores of a round; `own` masks the targets' own tokens, batch by batch."""
