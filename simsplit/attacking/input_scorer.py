"""A scorer compares recovered inputs of one kind of data with the truth, for the judge."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.attacking.attack_judge import KindScores
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.scenario import Scenario

NEAREST = "nearest_other"
"""The floor of attacks with candidates in no order: the nearest of as many held-out samples."""


class InputScorer(ABC):
    """Base class of scorers, which compare recovered inputs with the targets."""

    @abstractmethod
    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        """Take from a scenario which samples are targets, and how they are scored."""

    @staticmethod
    def put_in_order(guesses: Guesses, truth: Tensor) -> Tensor:
        """Return a row for each target; of candidates in no order, the nearest to each of them.

        Without candidates all rows are 0.
        """
        if not guesses.unordered:
            return guesses.rows
        return find_nearest(guesses.rows, truth)

    @abstractmethod
    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        """Return the scores of a round; `own` masks the targets' own tokens, batch by batch."""


def find_nearest(candidates: Tensor, truth: Tensor) -> Tensor:
    """Return, for each row of the truth, the candidate with the smallest squared error."""
    if not len(candidates):
        return torch.zeros_like(truth)
    distances = torch.cdist(truth.flatten(1).float(), candidates.flatten(1).float())
    return candidates[distances.argmin(1)].view_as(truth)


def find_nearest_others(
    recovered: Mapping[str, Guesses], others: Tensor, truth: Tensor
) -> dict[str, Tensor]:
    """Return the floor of attacks whose guesses are in no order: the nearest of as many others."""
    counts = [len(each.rows) for each in recovered.values() if each.unordered]
    return {NEAREST: find_nearest(others[: max(counts)], truth)} if counts else {}
