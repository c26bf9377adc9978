"""This module implements CusText (Chen et al., Findings of ACL 2023), which replaces tokens.

The vocabulary is divided into disjoint groups: the most frequent token and the 99 tokens nearest to
it by the cosine of their embeddings; then the most frequent of the remaining tokens and the 99
nearest to it; and so on. A token i is replaced by a token j of its group with probability

    p(j | i) ~ exp( epsilon u(i, j) / 2 ),

where u is the cosine, scaled to the range 0 to 1 over the group. This is epsilon differential
privacy of a token within its group.

The published code of VFLAIR-LLM differs as follows. It learns Word2Vec on the training texts and
replaces words, except those without a vector, and it changes numbers; here embeddings are the
model's before training, and all tokens are replaced. Its later groups may contain tokens of earlier
ones; here groups are disjoint. Here frequencies are counted over all clients' training texts, and a
text keeps its length, since it is not tokenised again.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.method import Method, Site
from simsplit.methods.replacing import Replacing, ReplacingConfig
from simsplit.methods.tokens import Tokens


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
    columns: ClassVar[tuple[str, ...]] = ("custext_changed",)
    changed_share_column: ClassVar[str | None] = "custext_changed"

    def build(self, site: Site) -> Method:
        return Custext(self, site.tokens) if site.side == "client" else Method()


class Custext(Replacing):
    """Replacement within groups, which are computed when the first text is replaced."""

    def __init__(self, config: CustextConfig, tokens: Tokens | None) -> None:
        super().__init__(config.kind, tokens, fixed=config.fixed)
        self.config = config

    def compute_probabilities(self, tokens: Tokens) -> Tensor:
        """Return 1 for every token: all are replaced, possibly by themselves."""
        return torch.ones(len(tokens.counts), device=tokens.embeddings.device)

    def count_values(self, tokens: Tokens) -> int:
        """Return the size of the embeddings of one group, which are gathered for each token."""
        return self.config.group * tokens.embeddings.shape[1]

    def compute_log_odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
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
