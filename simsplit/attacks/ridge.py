"""Ridge regression from what crosses to pixels, or to the values of a row: the least that a ceiling
must reach.

Like `whitebox` it has a client encode public images, which no deployed server could. Its weights
come in closed form, so a low figure is not for want of training; and they are dense, so a dense
projection at the cut hides nothing from them that a linear map could read.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.base import Attack, AttackConfig, Done, payloads
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.regression import Ridge, fit
from simsplit.methods.base import NUMBERS, Modality
from simsplit.packets import Packet

Queries = Sequence[tuple[Packet, Tensor]]
"""Packets of public images, and their pixels."""


class RidgeConfig(AttackConfig):
    """A linear map from payloads to pixels, fitted to true pairs: a floor under the ceiling."""

    suits: ClassVar[frozenset[Modality]] = NUMBERS
    kind: Literal["ridge"] = "ridge"
    pairs: int = Field(default=6000, ge=2)
    """How many auxiliary images a client encodes at most; a tenth of them chooses the penalty."""

    @property
    def queries(self) -> int:
        """Auxiliary images that a client encodes, one for each pair."""
        return self.pairs

    def build(self, known: Knowledge) -> "RidgeAttack":
        return RidgeAttack(self, known)


class RidgeAttack(Attack):
    """Fits the map, and reads the targets with it."""

    def __init__(self, config: RidgeConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        self._fitted: Ridge | None = None
        self._recovered = torch.empty(0)

    def study(self, queries: Queries) -> None:
        """Fit the map to what the client sent."""
        self._fitted = fitted(self.known, queries, self.config.pairs)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Read all targets in one pass."""
        assert self._fitted is not None, "queries come first"
        sent = torch.cat([self.known.crossed(packet) for packet in payloads(targets)])
        self._recovered = self._fitted.predict(sent).view(-1, *self.known.image)
        yield 1, 1

    @property
    def recovered(self) -> Tensor:
        return self._recovered


def fitted(known: Knowledge, queries: Queries, most: int) -> Ridge:
    """The map from what crossed to pixels, from at most so many pairs."""
    count = min(most, sum(len(pixels) for _, pixels in queries))
    return fit(_pairs(known, queries, count), count)


def _pairs(known: Knowledge, queries: Queries, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    done = 0
    for packet, pixels in queries:
        rows = min(count - done, len(pixels))
        if rows > 0:
            yield known.crossed(packet)[:rows], pixels[:rows].flatten(1)
        done += rows
