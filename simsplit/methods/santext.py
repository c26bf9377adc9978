"""SanText+ (Yue et al., Findings of ACL 2021): rare tokens are replaced by others near them.

The rarer half of the tokens is sensitive. A sensitive token is always replaced, any other one with
probability p; in either case a sensitive token j takes the place of i with

    p(j | i) ~ exp( -epsilon d(i, j) / 2 ),

d the Euclidean distance of embeddings. With `sensitive: 1` all tokens are: that is SanText, whose
replacements have epsilon metric differential privacy each.

As in the published code of VFLAIR-LLM: tokens and not words, embeddings of the model (as they are
before training), frequencies of the training texts (all clients'). PIDI's paper varies p and does
not tell epsilon; that code's configuration has 0.1, as here. What a token is worth to epsilon
depends on the model: distances are a few tenths in some and tens in others. Ours: tokens that never
occur in training are sensitive too, where that code would leave them as they are, but only tokens
that occur are put in others' places. The text's length stays, since no text is tokenised anew.
"""

import math
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import Method, Site
from simsplit.methods.replacing import Replacing, ReplacingConfig
from simsplit.methods.tokens import Tokens


class SantextConfig(ReplacingConfig):
    """Replaces rare tokens, and some others, by rare ones that are near them."""

    kind: Literal["santext"] = "santext"
    p: float = Field(default=0.05, ge=0, le=1)
    """Probability that a token that is not sensitive is replaced; PIDI's runs use 0.02 to 0.1."""
    epsilon: float = Field(default=0.1, ge=0)
    """Privacy per unit of distance; 0: any sensitive token is as likely as another."""
    sensitive: float = Field(default=0.5, gt=0, le=1)
    """The share of tokens that are sensitive, the rarest; 1: all."""
    fixed: bool = True
    """Whether a text is replaced alike in every epoch; if not, it is drawn anew each time."""
    reported: ClassVar[tuple[str, ...]] = ("santext_changed",)
    changes: ClassVar[str | None] = "santext_changed"

    def build(self, site: Site) -> Method:
        """The draws on the client; nothing on the server."""
        return Santext(self, site.tokens) if site.side == "client" else Method()


class Santext(Replacing):
    """Knows which tokens are sensitive."""

    def __init__(self, config: SantextConfig, tokens: Tokens | None) -> None:
        super().__init__(config.kind, tokens, fixed=config.fixed)
        self.config = config

    @cached_property
    def _parted(self) -> tuple[Tensor, Tensor]:
        """V: how likely each token is replaced; and the sensitive tokens that occur."""
        tokens, config = self.known, self.config
        assert tokens is not None, "asked when tokens are replaced"
        occur = tokens.ordinary[tokens.counts.to(tokens.ordinary.device)[tokens.ordinary] > 0]
        frequent = len(occur) - math.ceil(config.sensitive * len(occur))
        chance = torch.ones(len(tokens.counts), dtype=torch.float64, device=occur.device)
        chance[occur[:frequent]] = config.p
        return chance, occur[frequent:]

    def chance(self, tokens: Tokens) -> Tensor:
        """1 of sensitive tokens, p of the others."""
        del tokens
        return self._parted[0]

    def width(self, tokens: Tokens) -> int:
        """The number of sensitive tokens."""
        del tokens
        return len(self._parted[1])

    def odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """By distance, of the sensitive tokens."""
        sensitive, table = self._parted[1], tokens.embeddings
        away_UC = torch.cdist(table[ids_U].float(), table[sensitive].float())
        return -self.config.epsilon / 2 * away_UC, sensitive.expand(len(ids_U), -1)
