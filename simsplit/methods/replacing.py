"""This module replaces tokens at random before the head sees them, for SanText and CusText.

The replacement of a token is drawn from a distribution over the vocabulary that depends on the
token. This distribution is computed only for the tokens of the batch, a part at a time, so no
table of V x V is needed.

Labels are not replaced. So a language model learns to continue a replaced text by the true next
token, and in generation the tokens that it wrote are replaced before they are read again. Special
tokens are never replaced. Attacks are scored against the private text.

With `fixed`, draws belong to a text and a position in it, so a text is sent with the same tokens in
every epoch, as if the data set had been replaced before training. Fresh replacements in every epoch
would reveal the text by their mean. Evaluation and sessions always use such draws: a token's
replacement depends on its position only, so a text that grows token by token keeps its beginning.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.method import TEXTS, Method, MethodConfig, Modality, Step, Trait
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

AT_ONCE = 1 << 22
"""The number of values that are computed at once, which bounds the memory."""


class ReplacingConfig(MethodConfig):
    """The base of methods that replace tokens."""

    modalities: ClassVar[frozenset[Modality]] = TEXTS
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    once: ClassVar[bool] = True
    reads_tokens: ClassVar[bool] = True
    works_in_sessions: ClassVar[bool] = True


class Replacing(Method, ABC):
    """Random replacement of a batch's tokens; the column `KIND_changed` has the changed share."""

    def __init__(self, kind: str, tokens: Tokens | None, *, fixed: bool) -> None:
        self.kind, self.tokens, self.fixed = kind, tokens, fixed

    @abstractmethod
    def compute_probabilities(self, tokens: Tokens) -> Tensor:
        """Return the probability that each of the V tokens is replaced (possibly by itself)."""

    @abstractmethod
    def count_values(self, tokens: Tokens) -> int:
        """Return how many values `compute_log_odds` needs in memory for one token."""

    @abstractmethod
    def compute_log_odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return unnormalised log probabilities of replacements for U tokens, and these (U x C)."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch with replaced tokens."""
        tokens = self.tokens
        if tokens is None:
            raise ProtocolError(f"{self.kind} needs the model's vocabulary, got none")
        ids = batch.inputs
        whether, which = self._draw_uniform(batch, step).to(ids.device).unbind(-1)
        ordinary = tokens.is_ordinary[ids]
        chosen = ordinary & (whether < self.compute_probabilities(tokens)[ids])
        sent = ids.clone()
        sent[chosen] = self._replace(ids[chosen], which[chosen], tokens)
        changed = (sent != ids).sum() / ordinary.sum().clamp_min(1)
        step.figures[f"{self.kind}_changed"] = changed.double()
        return Batch(sent, batch.labels, batch.indices, batch.mask, batch.lengths)

    def _draw_uniform(self, batch: Batch, step: Step) -> Tensor:
        """Draw two uniform numbers for each token (B x L x 2), on the CPU in double precision.

        The first decides whether a token is replaced, the second by which token.
        """
        rows, length = batch.inputs.shape
        if step.training and not self.fixed:
            rng = step.make_rng(self.kind, step.phase)
            return torch.rand(rows, length, 2, generator=rng, dtype=torch.float64)
        streams = (
            rng_for(step.seed, self.kind, step.client, int(row)) for row in batch.indices.tolist()
        )
        # In a session, all tokens so far are drawn for; the tokens of this pass are the last.
        mask, count = batch.mask, length
        if step.session is not None:
            mask, count = step.session.mask, step.session.seen
        draws = [torch.rand(count, 2, generator=rng, dtype=torch.float64) for rng in streams]
        draws_BS2 = torch.stack(draws)
        if mask is not None:
            # Positions count from a text's first real token, so padding does not change its draws.
            places_BS = (mask.long().cumsum(1) - 1).clamp_min(0).cpu()
            draws_BS2 = draws_BS2.gather(1, places_BS[..., None].expand(-1, -1, 2))
        return draws_BS2[:, -length:]

    def _replace(self, ids_N: Tensor, draws_N: Tensor, tokens: Tokens) -> Tensor:
        """Return each token's replacement, by the inverse of its cumulative distribution."""
        kinds_U, of_N = ids_N.unique(return_inverse=True)
        sent_N = ids_N.clone()
        some = max(1, AT_ONCE // self.count_values(tokens))
        for start in range(0, len(kinds_U), some):
            here = (of_N >= start) & (of_N < start + some)
            odds_UC, candidates_UC = self.compute_log_odds(kinds_U[start : start + some], tokens)
            columns = _sample_columns(odds_UC, of_N[here] - start, draws_N[here])
            sent_N[here] = candidates_UC[of_N[here] - start, columns]
        return sent_N


def _sample_columns(odds_UC: Tensor, rows_N: Tensor, draws_N: Tensor) -> Tensor:
    """Return a column of each of the given rows, sampled by the rows' log odds and the draws."""
    rising_UC = odds_UC.double().softmax(1).cumsum(1)
    rising_UC = rising_UC / rising_UC[:, -1:]
    # One search serves all rows: adding a row's number to its cumulative probabilities makes the
    # flattened table ascend.
    rising_UC += torch.arange(len(rising_UC), device=rising_UC.device)[:, None]
    columns = rising_UC.shape[1]
    found_N = torch.searchsorted(rising_UC.flatten(), draws_N + rows_N, right=True)
    # Rounding may put a draw into a neighbouring row.
    return (found_N - rows_N * columns).clamp(0, columns - 1)
