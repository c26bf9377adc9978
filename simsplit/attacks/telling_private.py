"""Which of several readings is the private text: what comes again, or is least like public texts.

Methods that send a text among public ones, mixed or not, leave a reader with several readings. In
two epochs the private text comes twice, among other public ones. In one epoch it is the one that is
least like the server's own public texts, if these are of the same kind as the others.
"""

from functools import cached_property
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.attacks.inverters import LEAST, NOTHING, InverterConfig
from simsplit.attacks.inverting import Inverting

AT_ONCE = 256
"""Number of public texts whose tokens are counted at once."""


class TellingConfig(InverterConfig):
    """Base class of the fields of attacks that tell which of their readings is the private text."""

    looks: int = Field(default=1, ge=1, le=2)
    """Number of epochs that it observes; 2: of several readings, the one that comes in both is
    taken for the private text."""
    picks: Literal["surest", "strangest"] = "surest"
    """Which of several readings of one epoch it takes for the private text. surest: what the
    inverter is surest of. strangest: what has least in common with the server's public texts, as
    the texts that clients send along are public too. A search of the span takes the surest where
    more texts than messages are mixed, since only the private one can be read then."""

    @property
    def num_epochs(self) -> int:
        return self.looks

    @model_validator(mode="after")
    def _refuse_both(self) -> Self:
        if self.looks > 1 and self.picks != "surest":
            raise ValueError("picks: strangest is for one epoch; leave out looks, or picks")
        return self


class Telling(Inverting):
    """An attack that tells which of its readings is the private text."""

    config: TellingConfig

    @cached_property
    def public(self) -> "PublicTexts":
        """The server's public texts, for readings to be compared with."""
        known = self.known.auxiliary
        assert known is not None, "refused without when the scenario is read"
        vocabulary = self.vocabulary
        return PublicTexts(known.batcher.batch(known.part).inputs, vocabulary.size, vocabulary.pad)


class PublicTexts:
    """Public texts, by their tokens and by the pairs of neighbouring tokens that they have."""

    def __init__(self, tokens_RL: Tensor, vocabulary: int, pad: int) -> None:
        self.vocabulary, self.pad = vocabulary, pad
        self.known = self._number_pairs(tokens_RL)
        counts = [_mark_tokens(rows, vocabulary).sum(0) for rows in tokens_RL.split(AT_ONCE)]
        self.rarity_V = ((len(tokens_RL) + 1) / (torch.stack(counts).sum(0) + 1)).log()
        self.rarity_V[pad] = 0

    def measure_familiarity(self, tokens_PBL: Tensor) -> Tensor:
        """Compute the share of each reading's pairs that public texts have: P x B.

        A pair counts once, and none with padding counts; a reading without a pair has share 1.
        """
        shares = [
            torch.isin(pairs, self.known).float().mean().nan_to_num(1.0)
            for pairs in map(self._number_pairs, tokens_PBL.flatten(0, 1))
        ]
        share_PB: Tensor = torch.stack(shares).view(tokens_PBL.shape[:2])
        return share_PB

    def _number_pairs(self, tokens: Tensor) -> Tensor:
        """Return a number for each different pair of tokens side by side in the last dimension."""
        first, second = tokens[..., :-1], tokens[..., 1:]
        sound = (tokens != self.pad) & (tokens != NOTHING)
        numbers = (first * self.vocabulary + second)[sound[..., :-1] & sound[..., 1:]]
        different: Tensor = numbers.unique()
        return different


def compute_agreement(one_PBL: Tensor, other_QBK: Tensor, weight_V: Tensor) -> Tensor:
    """Compute the share of readings' tokens that other readings have too: P x Q x B.

    Different tokens count, wherever they stand and however often, each by its weight: secret tokens
    shift positions, and padding and frequent words come again in any text.
    """
    one_PBV, other_QBV = (_mark_tokens(each, len(weight_V)) for each in (one_PBL, other_QBK))
    weighed_PBV = one_PBV * weight_V
    common_PQB = torch.einsum("pbv,qbv->pqb", weighed_PBV, other_QBV.float())
    share_PQB: Tensor = common_PQB / weighed_PBV.sum(-1)[:, None].clamp_min(LEAST)
    return share_PQB


def _mark_tokens(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return which tokens each row has, in the last dimension; NOTHING is none."""
    there = torch.zeros(*tokens.shape[:-1], vocabulary + 1, dtype=torch.bool, device=tokens.device)
    places = tokens.masked_fill(tokens == NOTHING, vocabulary)
    marked: Tensor = there.scatter_(-1, places, value=True)[..., :vocabulary]
    return marked
