"""This module implements SanText+ (Yue et al., Findings of ACL 2021), which replaces rare tokens.

The rarer half of the tokens is sensitive. A sensitive token is always replaced, any other token
with probability p. In both cases a token i is replaced by a sensitive token j with probability

    p(j | i) ~ exp( -epsilon d(i, j) / 2 ),

where d is the Euclidean distance of embeddings. With `sensitive: 1` all tokens are sensitive: this
is SanText, in which each replacement has epsilon metric differential privacy.

As in the published code of VFLAIR-LLM, tokens are replaced instead of words, embeddings are the
model's before training, and frequencies are counted over (all clients') training texts. PIDI's
paper varies p and does not state epsilon; VFLAIR-LLM's configuration has 0.1, which is the default
here. The effect of epsilon depends on the model: distances are a few tenths in some models and tens
in others. Our departure: tokens that do not occur in training are sensitive too (VFLAIR-LLM leaves
them unchanged), but only tokens that occur are used as replacements. A text keeps its length, since
it is not tokenised again.
"""

import math
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.method import Method, Site
from simsplit.methods.replacing import Replacing, ReplacingConfig
from simsplit.methods.tokens import Tokens


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
    columns: ClassVar[tuple[str, ...]] = ("santext_changed",)
    changed_share_column: ClassVar[str | None] = "santext_changed"

    def build(self, site: Site) -> Method:
        return Santext(self, site.tokens) if site.side == "client" else Method()


class Santext(Replacing):
    """Replacement by sensitive tokens."""

    def __init__(self, config: SantextConfig, tokens: Tokens | None) -> None:
        super().__init__(config.kind, tokens, fixed=config.fixed)
        self.config = config

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
        del tokens
        return self._partition[0]

    def count_values(self, tokens: Tokens) -> int:
        """Return the number of sensitive tokens, to which distances are computed."""
        del tokens
        return len(self._partition[1])

    def compute_log_odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return -epsilon / 2 times the distances to the sensitive tokens, and these tokens."""
        sensitive, table = self._partition[1], tokens.embeddings
        distances_UC = torch.cdist(table[ids_U].float(), table[sensitive].float())
        return -self.config.epsilon / 2 * distances_UC, sensitive.expand(len(ids_U), -1)
