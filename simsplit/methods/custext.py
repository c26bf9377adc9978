"""CusText (Chen et al., Findings of ACL 2023): each token is replaced by one of a group of its own.

The vocabulary falls into disjoint groups: the most frequent token and the 99 nearest to it by the
cosine of their embeddings, then of what is left the most frequent and the 99 nearest to that, and
so on. Within its group a token i becomes j with

    p(j | i) ~ exp( epsilon u(i, j) / 2 ),

u the cosine, scaled to lie between 0 and 1 over the group; that is epsilon differential privacy of
a token among its group.

As in the published code of VFLAIR-LLM, but for these. Embeddings are the model's, as they are
before training, where that code learns Word2Vec on the training texts; so tokens and not words are
replaced, and all of them, where it leaves words that it has no vector for, and changes numbers.
Groups are disjoint, where its later ones may hold tokens of earlier ones. Frequencies are of all
clients' training texts. The text's length stays, since no text is tokenised anew.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.methods.base import Method, Site
from simsplit.methods.replacing import Replacing, ReplacingConfig
from simsplit.methods.tokens import Tokens


class CustextConfig(ReplacingConfig):
    """Replaces each token by one of its group, the likelier the nearer."""

    kind: Literal["custext"] = "custext"
    epsilon: float = Field(default=100.0, ge=0)
    """Privacy of a token among its group; PIDI's runs use 150 (weakest) to 30. 0: any token of the
    group is as likely as another."""
    group: int = Field(default=100, ge=2)
    """Tokens in a group."""
    fixed: bool = True
    """Whether a text is replaced alike in every epoch; if not, it is drawn anew each time."""
    reported: ClassVar[tuple[str, ...]] = ("custext_changed",)
    changes: ClassVar[str | None] = "custext_changed"

    def build(self, site: Site) -> Method:
        """The draws on the client; nothing on the server."""
        return Custext(self, site.tokens) if site.side == "client" else Method()


class Custext(Replacing):
    """Draws from groups, which are worked out when the first text is replaced."""

    def __init__(self, config: CustextConfig, tokens: Tokens | None) -> None:
        super().__init__(config.kind, tokens, fixed=config.fixed)
        self.config = config

    def chance(self, tokens: Tokens) -> Tensor:
        """Every token is replaced, if maybe by itself."""
        return torch.ones(len(tokens.counts), device=tokens.embeddings.device)

    def width(self, tokens: Tokens) -> int:
        """A group's tokens, of each of which an embedding is looked up."""
        return self.config.group * tokens.embeddings.shape[1]

    def odds(self, ids_U: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """By likeness, of the tokens of each one's group."""
        groups = tokens.groups(self.config.group)
        members_UK = groups.members[groups.of[ids_U]]
        absent_UK = members_UK < 0
        others_UKD = tokens.directions[members_UK.clamp_min(0)]
        near_UK = torch.einsum("ud,ukd->uk", tokens.directions[ids_U], others_UKD)
        least = near_UK.masked_fill(absent_UK, torch.inf).amin(1, keepdim=True)
        most = near_UK.masked_fill(absent_UK, -torch.inf).amax(1, keepdim=True)
        scaled_UK = (near_UK - least) / (most - least).clamp_min(torch.finfo(torch.float32).tiny)
        odds_UK = self.config.epsilon / 2 * scaled_UK
        return odds_UK.masked_fill(absent_UK, -torch.inf), members_UK
