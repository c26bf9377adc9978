"""Tokens that are replaced at random before the head sees them: what SanText and CusText share.

A replaced token is drawn from a distribution over the vocabulary that depends on the token. Rows of
it are worked out for the tokens of the batch alone, some at a time: no table of V x V.

Labels stay what they were. So a model that writes learns to continue a replaced text by the true
next token, and in generation what it wrote itself is replaced before it is read again. Special
tokens are never replaced. Attacks are scored against the private text.

Draws belong to a text and a place in it (`fixed`): a text that was replaced anew in every epoch
would show itself by its mean. So it is sent with the same tokens each time, as where a data set is
replaced before training; and a text that is written token by token keeps its beginning. Evaluation
is so in any case, and a session as well: what a token is replaced by depends on its place alone.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.base import TEXTS, Method, MethodConfig, Modality, Step, Trait
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

AT_ONCE = 1 << 22
"""Probabilities that are worked out at once."""


class ReplacingConfig(MethodConfig):
    """Base of the methods that replace tokens."""

    suits: ClassVar[frozenset[Modality]] = TEXTS
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    once: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True
    passes: ClassVar[bool] = True


class Replacing(Method, ABC):
    """Replaces tokens of a batch; `KIND_changed` is the share of a round's that are others now."""

    def __init__(self, kind: str, tokens: Tokens | None, *, fixed: bool) -> None:
        self.kind, self.known, self.fixed = kind, tokens, fixed

    @abstractmethod
    def chance(self, tokens: Tokens) -> Tensor:
        """V: with which probability a token is replaced (possibly by itself)."""

    @abstractmethod
    def width(self, tokens: Tokens) -> int:
        """How many replacements `odds` weighs for a token."""

    @abstractmethod
    def odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """For each of some tokens: logarithms of unnormalised probabilities, and the tokens that
        they are of.
        """

    def transform(self, batch: Batch, step: Step) -> Batch:
        """The batch with replaced tokens."""
        tokens = self.known
        if tokens is None:
            raise ProtocolError(f"{self.kind} was not told the model's vocabulary")
        ids = batch.inputs
        whether, which = self._drawn(batch, step).to(ids.device).unbind(-1)
        ordinary = tokens.is_ordinary[ids]
        chosen = ordinary & (whether < self.chance(tokens)[ids])
        sent = ids.clone()
        sent[chosen] = self._replaced(ids[chosen], which[chosen], tokens)
        changed = (sent != ids).sum() / ordinary.sum().clamp_min(1)
        step.told[f"{self.kind}_changed"] = changed.double()
        return Batch(sent, batch.labels, batch.indices, batch.mask, batch.lengths)

    def _drawn(self, batch: Batch, step: Step) -> Tensor:
        """Two uniform numbers for each token, on the CPU: B x L x 2, in double precision."""
        rows, length = batch.inputs.shape
        if step.training and not self.fixed:
            rng = step.rng(self.kind, step.phase)
            return torch.rand(rows, length, 2, generator=rng, dtype=torch.float64)
        streams = (
            rng_for(step.seed, self.kind, step.client, int(row)) for row in batch.indices.tolist()
        )
        # of a session all tokens so far, of which these are the last
        mask, every = batch.mask, length
        if step.session is not None:
            mask, every = step.session.mask, step.session.seen
        drawn = [torch.rand(every, 2, generator=rng, dtype=torch.float64) for rng in streams]
        drawn_BS2 = torch.stack(drawn)
        if mask is not None:
            # places are counted from a text's first token, wherever its padding is
            places_BS = (mask.long().cumsum(1) - 1).clamp_min(0).cpu()
            drawn_BS2 = drawn_BS2.gather(1, places_BS[..., None].expand(-1, -1, 2))
        return drawn_BS2[:, -length:]

    def _replaced(self, ids_N: Tensor, drawn_N: Tensor, tokens: Tokens) -> Tensor:
        """Each token's replacement, by the inverse of its cumulative distribution."""
        kinds_U, of_N = ids_N.unique(return_inverse=True)
        sent_N = ids_N.clone()
        some = max(1, AT_ONCE // self.width(tokens))
        for start in range(0, len(kinds_U), some):
            here = (of_N >= start) & (of_N < start + some)
            odds_UC, named_UC = self.odds(kinds_U[start : start + some], tokens)
            picked = _picked(odds_UC, of_N[here] - start, drawn_N[here])
            sent_N[here] = named_UC[of_N[here] - start, picked]
        return sent_N


def _picked(odds_UC: Tensor, rows_N: Tensor, drawn_N: Tensor) -> Tensor:
    """Columns drawn with the probabilities of the rows given.

    One search serves all rows: each one's cumulative probabilities are raised by its number, so
    that together they still ascend.
    """
    rising_UC = odds_UC.double().softmax(1).cumsum(1)
    rising_UC = rising_UC / rising_UC[:, -1:]
    rising_UC += torch.arange(len(rising_UC), device=rising_UC.device)[:, None]
    columns = rising_UC.shape[1]
    found_N = torch.searchsorted(rising_UC.flatten(), drawn_N + rows_N, right=True)
    return (found_N - rows_N * columns).clamp(0, columns - 1)
