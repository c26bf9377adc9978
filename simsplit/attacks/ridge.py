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

from simsplit.attacks.attack import Done, ImageAttackConfig, KeepingAttack
from simsplit.attacks.epoch_averages import Queries, average_epochs, average_queries
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.regression import Ridge, fit
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.methods.method import NUMBERS, Modality
from simsplit.packets import Packet


class RidgeConfig(ImageAttackConfig):
    """A linear map from payloads to pixels, fitted to true pairs: a floor under the ceiling."""

    threat: ClassVar[Threat] = Threat((Sees.RECEIVED,), (Knows.PUBLIC, Knows.QUERIES))
    modalities: ClassVar[frozenset[Modality]] = NUMBERS
    kind: Literal["ridge"] = "ridge"
    pairs: int = Field(default=6000, ge=2)
    """Maximum number of auxiliary images that a client encodes; a tenth of them is held out to
    choose the penalty."""

    @property
    def queries(self) -> int:
        return self.pairs

    def build(self, known: Knowledge) -> "RidgeAttack":
        return RidgeAttack(self, known)


class RidgeAttack(KeepingAttack):
    """An attack that fits the map and reconstructs the targets with it."""

    config: RidgeConfig
    _fitted: Ridge | None = None

    def study(self, queries: Queries) -> None:
        self._fitted = fit_map(self.known, queries, self.config.pairs)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        assert self._fitted is not None, "queries come first"
        packets = [packet for packet in targets if packet.leg is self.known.payload_leg]
        sent = torch.cat([*average_epochs(packets, self.known.flatten_payload)])
        self._recovered = self._fitted.predict(sent).view(-1, *self.known.image)
        yield 1, 1


def fit_map(known: Knowledge, queries: Queries, most: int) -> Ridge:
    """Fit the map from payloads to pixels, on at most `most` pairs."""
    epochs = len({packet.round for packet, _ in queries})
    count = min(most, sum(len(pixels) for _, pixels in queries) // epochs)
    return fit(_pairs(known, queries, count), count)


def _pairs(known: Knowledge, queries: Queries, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield payloads and pixels of the first `count` pairs, packet by packet."""
    for sent, pixels in average_queries(queries, known.flatten_payload):
        if count > 0:
            yield sent[:count], pixels[:count].flatten(1)
        count -= len(pixels)
