"""Secret tokens: random tokens, inserted into a text at positions that only the client knows."""

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED


def inserted(
    batch: Batch, count: int, vocabulary: int, rng: torch.Generator
) -> tuple[Batch, Tensor]:
    """The batch with `count` random tokens in each text, and a mask of the texts' own tokens.

    They stand at random positions of the prompt, after its first token; where everything is
    learned, anywhere after it. Nothing is learned at them; each other token keeps its
    label.
    """
    ids_BL, labels_BL = batch.inputs, batch.labels
    rows, length = ids_BL.shape
    if count == 0:
        return batch, torch.ones_like(ids_BL, dtype=torch.bool)
    wide = length + count
    lottery = torch.rand(rows, wide, generator=rng)
    places = torch.arange(wide)
    lottery[:, 0] = 2  # the first token stays the first
    lottery[places >= (_room(labels_BL.cpu()) + count)[:, None]] = 3
    chosen = lottery.argsort(dim=1, stable=True)[:, :count]
    own_BW = torch.ones(rows, wide, dtype=torch.bool).scatter_(1, chosen, value=False)
    source = (own_BW.long().cumsum(1) - 1).clamp(0, length - 1).to(ids_BL.device)
    secret = torch.randint(vocabulary, (rows, wide), generator=rng).to(ids_BL.device)
    own_BW = own_BW.to(ids_BL.device)
    ids_BW = torch.where(own_BW, ids_BL.gather(1, source), secret)
    labels_BW = labels_BL.gather(1, source).masked_fill(~own_BW, IGNORED)
    lengths = None if batch.lengths is None else batch.lengths + count
    return Batch(ids_BW, labels_BW, batch.indices, batch.mask, lengths), own_BW


def _room(labels_BL: Tensor) -> Tensor:
    """How many tokens come before what is learned; all of them if nothing is learned."""
    learned = labels_BL != IGNORED
    first = learned.long().argmax(1)
    last = labels_BL.shape[1] - 1 - learned.flip(1).long().argmax(1)
    return torch.where(first > 0, first, last + 1)
