"""Ridge regression from payloads to pixels or table values: the least that a ceiling must reach.

As for `whitebox`, a client encodes public images for it, which no deployed server could arrange.
Its weights have a closed form, so a poor score cannot be due to too little training. They are
dense, so they undo a dense projection at the cut as well as any linear map can.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import Attack, AttackConfig, Done, payloads
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.regression import Ridge, fit
from simsplit.methods.method import NUMBERS, Modality
from simsplit.packets import Packet

Queries = Sequence[tuple[Packet, Tensor]]
"""Packets of public images with their pixels."""


class RidgeConfig(AttackConfig):
    """A linear map from payloads to pixels, fitted to true pairs: a floor under the ceiling."""

    modalities: ClassVar[frozenset[Modality]] = NUMBERS
    kind: Literal["ridge"] = "ridge"
    pairs: int = Field(default=6000, ge=2)
    """Maximum number of auxiliary images that a client encodes; a tenth of them is held out to
    choose the penalty."""

    @property
    def queries(self) -> int:
        """Number of auxiliary images that a client encodes, one for each pair."""
        return self.pairs

    def build(self, known: Knowledge) -> "RidgeAttack":
        return RidgeAttack(self, known)


class RidgeAttack(Attack):
    """An attack that fits the map and reconstructs the targets with it."""

    def __init__(self, config: RidgeConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        self._fitted: Ridge | None = None
        self._recovered = torch.empty(0)

    def study(self, queries: Queries) -> None:
        """Fit the map to the client's packets."""
        self._fitted = fit_map(self.known, queries, self.config.pairs)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Reconstruct all targets in one pass."""
        assert self._fitted is not None, "queries come first"
        sent = torch.cat([self.known.flatten_payload(packet) for packet in payloads(targets)])
        self._recovered = self._fitted.predict(sent).view(-1, *self.known.image)
        yield 1, 1

    @property
    def recovered(self) -> Tensor:
        return self._recovered


def fit_map(known: Knowledge, queries: Queries, most: int) -> Ridge:
    """Fit the map from payloads to pixels, on at most `most` pairs."""
    count = min(most, sum(len(pixels) for _, pixels in queries))
    return fit(_pairs(known, queries, count), count)


def _pairs(known: Knowledge, queries: Queries, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield payloads and pixels of the first `count` pairs, packet by packet."""
    done = 0
    for packet, pixels in queries:
        rows = min(count - done, len(pixels))
        if rows > 0:
            yield known.flatten_payload(packet)[:rows], pixels[:rows].flatten(1)
        done += rows
