"""Secret tokens: random tokens, inserted into a text at positions that only the client knows."""

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED


def insert_tokens(
    batch: Batch, count: int, vocabulary: int, rng: torch.Generator
) -> tuple[Batch, Tensor]:
    """Insert `count` random tokens into each text; return the batch and a mask of its own tokens.

    The positions are random, after the first token and before the first labelled one, or anywhere
    after the first token if that one is labelled too. The inserted tokens have no labels; every
    other token keeps its own.
    """
    ids_BL, labels_BL = batch.inputs, batch.labels
    rows, length = ids_BL.shape
    if count == 0:
        return batch, torch.ones_like(ids_BL, dtype=torch.bool)
    wide = length + count
    lottery = torch.rand(rows, wide, generator=rng)
    places = torch.arange(wide)
    lottery[:, 0] = 2  # the first token stays the first
    lottery[places >= (_count_unlabelled(labels_BL.cpu()) + count)[:, None]] = 3
    chosen = lottery.argsort(dim=1, stable=True)[:, :count]
    own_BW = torch.ones(rows, wide, dtype=torch.bool).scatter_(1, chosen, value=False)
    source = (own_BW.long().cumsum(1) - 1).clamp(0, length - 1).to(ids_BL.device)
    secret = torch.randint(vocabulary, (rows, wide), generator=rng).to(ids_BL.device)
    own_BW = own_BW.to(ids_BL.device)
    ids_BW = torch.where(own_BW, ids_BL.gather(1, source), secret)
    labels_BW = labels_BL.gather(1, source).masked_fill(~own_BW, IGNORED)
    lengths = None if batch.lengths is None else batch.lengths + count
    return Batch(ids_BW, labels_BW, batch.indices, batch.mask, lengths), own_BW


def _count_unlabelled(labels_BL: Tensor) -> Tensor:
    """Return the number of tokens before each text's first labelled one.

    If that is the first token, return the number up to the last labelled one instead; if nothing is
    labelled, the number of all tokens.
    """
    learned = labels_BL != IGNORED
    first = learned.long().argmax(1)
    last = labels_BL.shape[1] - 1 - learned.flip(1).long().argmax(1)
    return torch.where(first > 0, first, last + 1)
