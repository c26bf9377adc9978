"""This module replaces tokens at random before the head sees them: SanText+ and CusText.

The replacement of a token is drawn from a distribution over the vocabulary that depends on the
token. This distribution is computed only for the tokens of the batch, a part at a time, so no
table of V x V is needed. RanText (`rantext`) shares the base class.

Labels are not replaced. So a language model learns to continue a replaced text by the true next
token, and in generation the tokens that it wrote are replaced before they are read again. Special
tokens are never replaced. Attacks are scored against the private text.

With `fixed`, draws belong to a text and a position in it, so a text is sent with the same tokens in
every epoch, as if the data set had been replaced before training. Fresh replacements in every epoch
would reveal the text by their mean. Evaluation and sessions always use such draws: a token's
replacement depends on its position only, so a text that grows token by token keeps its beginning.
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.method import TEXTS, Method, MethodConfig, Site, Step, Trait
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

AT_ONCE = 1 << 22
"""The number of values that are computed at once, which bounds the memory."""


class ReplacingConfig(MethodConfig):
    """The base of methods that replace tokens."""

    modalities = TEXTS
    required_traits = frozenset({Trait.SAMPLES})
    once = True
    reads_tokens = True
    deployable = False
    works_in_sessions = True


class Replacing(Method, ABC):
    """Random replacement of a batch's tokens; the column `KIND_changed` has the changed share."""

    noises = 0
    """How many uniform numbers each token has beside the two that choose its replacement."""

    def __init__(self, config: ReplacingConfig, tokens: Tokens | None, *, fixed: bool) -> None:
        self.config, self.tokens, self.fixed = config, tokens, fixed
        self.kind = config.kind_name

    def compute_probabilities(self, tokens: Tokens) -> Tensor:
        """Return the probability that each of the V tokens is replaced; by default all are.

        A token may be replaced by itself.
        """
        return torch.ones(len(tokens.counts), device=tokens.embeddings.device)

    @abstractmethod
    def count_values(self, tokens: Tokens) -> int:
        """Return how many values `compute_log_odds` needs in memory for one token."""

    @abstractmethod
    def compute_log_odds(
        self, ids_U: Tensor, noise_UE: Tensor, tokens: Tokens
    ) -> tuple[Tensor, Tensor]:
        """Return unnormalised log probabilities of replacements for U tokens, and these (U x C).

        `noise_UE` has the tokens' further uniform numbers, as many as `noises` says.
        """

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch with replaced tokens."""
        tokens = self.tokens
        if tokens is None:
            raise ProtocolError(f"{self.kind} needs the model's vocabulary, got none")
        ids = batch.inputs
        draws = self._draw_uniform(batch, step).to(ids.device)
        whether, which = draws[..., 0], draws[..., 1:]
        ordinary = tokens.is_ordinary[ids]
        chosen = ordinary & (whether < self.compute_probabilities(tokens)[ids])
        sent = ids.clone()
        sent[chosen] = self._replace(ids[chosen], which[chosen], tokens)
        changed = (sent != ids).sum() / ordinary.sum().clamp_min(1)
        step.figures[f"{self.kind}_changed"] = changed.double()
        return Batch(sent, batch.labels, batch.indices, batch.mask, batch.lengths)

    def _draw_uniform(self, batch: Batch, step: Step) -> Tensor:
        """Draw uniform numbers for each token (B x L x C), on the CPU in double precision.

        The first decides whether a token is replaced, the second by which token; others are noise.
        """
        rows, length = batch.inputs.shape
        each = 2 + self.noises
        if step.training and not self.fixed:
            rng = step.make_rng(self.kind, step.phase)
            return torch.rand(rows, length, each, generator=rng, dtype=torch.float64)
        streams = (
            rng_for(step.seed, self.kind, step.client, int(row)) for row in batch.indices.tolist()
        )
        # In a session, all tokens so far are drawn for; the tokens of this pass are the last.
        mask, count = batch.mask, length
        if step.session is not None:
            mask, count = step.session.mask, step.session.seen
        draws = [torch.rand(count, each, generator=rng, dtype=torch.float64) for rng in streams]
        draws_BSC = torch.stack(draws)
        if mask is not None:
            # Positions count from a text's first real token, so padding does not change its draws.
            places_BS = (mask.long().cumsum(1) - 1).clamp_min(0).cpu()
            draws_BSC = draws_BSC.gather(1, places_BS[..., None].expand(-1, -1, each))
        return draws_BSC[:, -length:]

    def _replace(self, ids_N: Tensor, draws_NC: Tensor, tokens: Tokens) -> Tensor:
        """Return each token's replacement, by the inverse of its cumulative distribution."""
        draws_N, noise_NE = draws_NC[:, 0], draws_NC[:, 1:]
        if self.noises:  # which makes each occurrence's distribution its own
            kinds_U, of_N = ids_N, torch.arange(len(ids_N), device=ids_N.device)
        else:
            kinds_U, of_N = ids_N.unique(return_inverse=True)
        sent_N = ids_N.clone()
        some = max(1, AT_ONCE // self.count_values(tokens))
        for start in range(0, len(kinds_U), some):
            here = (of_N >= start) & (of_N < start + some)
            part = slice(start, start + some)
            odds_UC, candidates_UC = self.compute_log_odds(kinds_U[part], noise_NE[part], tokens)
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


class SantextConfig(ReplacingConfig):
    """Rare tokens, and some others, replaced by near rare tokens."""

    kind: Literal["santext"] = "santext"
    p: float = Field(default=0.05, ge=0, le=1)
    """Probability that a token that is not sensitive is replaced. PIDI's runs use 0.02 to 0.1."""
    epsilon: float = Field(default=0.1, ge=0)
    """Privacy parameter per unit of distance; smaller values hide more. 0: all sensitive tokens are
    equally likely."""
    sensitive: float = Field(default=0.5, gt=0, le=1)
    """Share of tokens that are sensitive; these are the rarest. 1: all tokens."""
    fixed: bool = True
    """Whether a text has the same replacements in every epoch. If not, they are drawn anew each
    time."""
    columns = ("santext_changed",)
    changed_share_column = "santext_changed"

    @property
    def release(self) -> str:
        """The reason why there is no guarantee: the privacy is metric."""
        stay = "" if self.sensitive == 1 else ", and most tokens that are not sensitive stay"
        return f"epsilon is per unit of distance between tokens (metric privacy){stay}"

    def build(self, site: Site) -> Method:
        return Santext(self, site.tokens, fixed=self.fixed) if site.side == "client" else Method()


class Santext(Replacing):
    """SanText+ (Yue et al., Findings of ACL 2021), which replaces rare tokens.

    The rarer half of the tokens is sensitive. A sensitive token is always replaced, any other token
    with probability p. In both cases a token i is replaced by a sensitive token j with probability

        p(j | i) ~ exp( -epsilon d(i, j) / 2 ),

    where d is the Euclidean distance of embeddings. With `sensitive: 1` all tokens are sensitive:
    this is SanText, in which each replacement has epsilon metric differential privacy.

    As in the published code of VFLAIR-LLM, tokens are replaced instead of words, embeddings are the
    model's before training, and frequencies are counted over (all clients') training texts. PIDI's
    paper varies p and does not state epsilon; VFLAIR-LLM's configuration has 0.1, which is the
    default here. The effect of epsilon depends on the model: distances are a few tenths in some
    models and tens in others. Our departure: tokens that do not occur in training are sensitive too
    (VFLAIR-LLM leaves them unchanged), but only tokens that occur are used as replacements. A text
    keeps its length, since it is not tokenised again.
    """

    config: SantextConfig

    @cached_property
    def _partition(self) -> tuple[Tensor, Tensor]:
        """The probability that each token is replaced, and the sensitive tokens that occur."""
        tokens, config = self.tokens, self.config
        assert tokens is not None, "transform checks that there is a vocabulary"
        occur = tokens.ordinary[tokens.counts.to(tokens.ordinary.device)[tokens.ordinary] > 0]
        frequent = len(occur) - math.ceil(config.sensitive * len(occur))
        probabilities = torch.ones(len(tokens.counts), dtype=torch.float64, device=occur.device)
        probabilities[occur[:frequent]] = config.p
        return probabilities, occur[frequent:]

    def compute_probabilities(self, tokens: Tokens) -> Tensor:
        """Return 1 for sensitive tokens, and p for the others."""
        return self._partition[0]

    def count_values(self, tokens: Tokens) -> int:
        """Return the number of sensitive tokens, to which distances are computed."""
        return len(self._partition[1])

    def compute_log_odds(
        self, ids_U: Tensor, noise_UE: Tensor, tokens: Tokens
    ) -> tuple[Tensor, Tensor]:
        """Return -epsilon / 2 times the distances to the sensitive tokens, and these tokens."""
        sensitive, table = self._partition[1], tokens.embeddings
        distances_UC = torch.cdist(table[ids_U].float(), table[sensitive].float())
        return -self.config.epsilon / 2 * distances_UC, sensitive.expand(len(ids_U), -1)


class CustextConfig(ReplacingConfig):
    """Tokens replaced by tokens of the same group, with near ones more likely."""

    kind: Literal["custext"] = "custext"
    epsilon: float = Field(default=100.0, ge=0)
    """Privacy parameter of a token within its group; smaller values hide more. PIDI's runs use 150
    (weakest) to 30. 0: all tokens of the group are equally likely."""
    group: int = Field(default=100, ge=2)
    """Tokens per group."""
    fixed: bool = True
    """Whether a text has the same replacements in every epoch. If not, they are drawn anew each
    time."""
    columns = ("custext_changed",)
    changed_share_column = "custext_changed"
    release: ClassVar[str] = (
        "epsilon holds between tokens of one group alone, and a token's group is shown"
    )

    def build(self, site: Site) -> Method:
        return Custext(self, site.tokens, fixed=self.fixed) if site.side == "client" else Method()


class Custext(Replacing):
    """CusText (Chen et al., Findings of ACL 2023), which replaces tokens within groups.

    The vocabulary is divided into disjoint groups: the most frequent token and the 99 tokens
    nearest to it by the cosine of their embeddings; then the most frequent of the remaining tokens
    and the 99 nearest to it; and so on. They are computed when the first text is replaced. A token
    i is replaced by a token j of its group with probability

        p(j | i) ~ exp( epsilon u(i, j) / 2 ),

    where u is the cosine, scaled to the range 0 to 1 over the group. This is epsilon differential
    privacy of a token within its group.

    The published code of VFLAIR-LLM differs as follows. It learns Word2Vec on the training texts
    and replaces words, except those without a vector, and it changes numbers; here embeddings are
    the model's before training, and all tokens are replaced. Its later groups may contain tokens of
    earlier ones; here groups are disjoint. Here frequencies are counted over all clients' training
    texts, and a text keeps its length, since it is not tokenised again.
    """

    config: CustextConfig

    def count_values(self, tokens: Tokens) -> int:
        """Return the size of the embeddings of one group, which are gathered for each token."""
        return self.config.group * tokens.embeddings.shape[1]

    def compute_log_odds(
        self, ids_U: Tensor, noise_UE: Tensor, tokens: Tokens
    ) -> tuple[Tensor, Tensor]:
        """Return epsilon / 2 times the scaled cosines to the tokens of each one's group."""
        groups = tokens.get_groups(self.config.group)
        members_UK = groups.members[groups.of[ids_U]]
        absent_UK = members_UK < 0
        others_UKD = tokens.directions[members_UK.clamp_min(0)]
        near_UK = torch.einsum("ud,ukd->uk", tokens.directions[ids_U], others_UKD)
        least = near_UK.masked_fill(absent_UK, torch.inf).amin(1, keepdim=True)
        most = near_UK.masked_fill(absent_UK, -torch.inf).amax(1, keepdim=True)
        scaled_UK = (near_UK - least) / (most - least).clamp_min(torch.finfo(torch.float32).tiny)
        odds_UK = self.config.epsilon / 2 * scaled_UK
        return odds_UK.masked_fill(absent_UK, -torch.inf), members_UK
