"""This module implements RanText of InferDPT (Tong et al., 2023), which replaces every token.

Others of the kind give a token a fixed list of possible replacements. Here the list is drawn with
each occurrence. Let e be a token's embedding, and r the length of a vector of Laplace noise, whose
scale in dimension i is D_i / f(epsilon), where D_i is the range of all tokens' values in it. Tokens
nearer to e than r form the list, and a token at distance d in it replaces e's with probability

    p ~ exp( epsilon / 2 (r - d) / r ).

The published code, which this follows, has f(epsilon) = epsilon below 2, and from there on

    f = .01658 ln(19.0647 epsilon - 38.1294) + 9.3111,

so the noise falls to a fifth at 2 and hardly any further: above, epsilon makes near tokens likelier
and does not shorten the list. A token is on its own list, and may stay. How many stay depends on
the model as well: of tokens drawn at random, epsilon 3 replaces 60 % in the demo model of 1.7
million weights, where a list has a tenth of all tokens, and 99 % in SmolLM2-135M, where it has four
fifths.

Ours differs as follows. Embeddings are the model's before training, of all its tokens; published
are those of OpenAI's embedding model, of 11,000 tokens. All tokens are replaced; published code
leaves out tokens without an embedding, and draws numbers at random. A text keeps its length, since
it is not tokenised again. In InferDPT a second model, at the client, writes the answer anew from
what the server wrote; here nobody does.
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

LEAST = 1e-30
"""The smallest length of noise, so that none is divided by zero."""


class RantextConfig(ReplacingConfig):
    """Every token replaced by one of a random number of near ones."""

    kind: Literal["rantext"] = "rantext"
    epsilon: float = Field(default=3.0, gt=0)
    """Privacy parameter of a token; smaller values hide more. The published code's default is 3,
    and its example has 6."""
    fixed: bool = True
    """Whether a text has the same replacements in every epoch. If not, they are drawn anew each
    time."""
    columns = ("rantext_changed",)
    changed_share_column = "rantext_changed"
    release: ClassVar[str] = (
        "epsilon is that of a choice from a list, and which tokens are on the list depends on "
        "the token that it replaces"
    )

    @property
    def noise_divisor(self) -> float:
        """Return f(epsilon), which divides the embeddings' ranges into the noise's scales."""
        if self.epsilon < 2:
            return self.epsilon
        slope, start = 19.064721649556482, 38.1294334077209
        return 0.01658160142016071 * math.log(slope * self.epsilon - start) + 9.311083811697406

    def build(self, site: Site) -> Method:
        return Rantext(self, site.tokens) if site.side == "client" else Method()


class Rantext(Replacing):
    """The client's half, which draws a list of near tokens for each occurrence of a token."""

    config: RantextConfig

    def __init__(self, config: RantextConfig, tokens: Tokens | None) -> None:
        super().__init__(config, tokens, fixed=config.fixed)
        if tokens is not None:
            self.noises = tokens.embeddings.shape[1]

    @cached_property
    def _scales(self) -> Tensor:
        """The scale of the noise in each dimension of the embeddings."""
        tokens = self.tokens
        assert tokens is not None, "transform checks that there is a vocabulary"
        table_CD = tokens.embeddings[tokens.ordinary].float()
        return (table_CD.amax(0) - table_CD.amin(0)) / self.config.noise_divisor

    def count_values(self, tokens: Tokens) -> int:
        """Return the number of tokens, to which distances are computed."""
        return len(tokens.counts)

    def compute_log_odds(
        self, ids_U: Tensor, noise_UE: Tensor, tokens: Tokens
    ) -> tuple[Tensor, Tensor]:
        """Return epsilon / 2 times (r - d) / r, and minus infinity for tokens beyond r."""
        # Laplace's noise is exponential but for the sign, which a length does not need.
        around_UE = -torch.log1p(-noise_UE) * self._scales
        radius_U1 = around_UE.norm(dim=1, keepdim=True).float()
        every_V = torch.arange(len(tokens.counts), device=ids_U.device)
        table_VD = tokens.embeddings.float()
        distance_UV = torch.cdist(table_VD[ids_U], table_VD)
        beyond_UV = (distance_UV >= radius_U1) | ~tokens.is_ordinary
        # A token is on its own list, however short, and whatever rounding makes of its distance.
        own_UV = ids_U[:, None] == every_V
        nearness_UV = 1 - distance_UV.masked_fill(own_UV, 0.0) / radius_U1.clamp_min(LEAST)
        odds_UV = self.config.epsilon / 2 * nearness_UV
        return odds_UV.masked_fill(beyond_UV & ~own_UV, -torch.inf), every_V.expand(len(ids_U), -1)
