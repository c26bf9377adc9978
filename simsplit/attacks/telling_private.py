"""Which of several readings is the private text: what comes again, or what no public text is like.

Methods that send a text among public ones, mixed or not, leave a reader with several readings. In
two epochs the private text comes twice, among other public ones. In one epoch it is the one that is
least like the server's own public texts, if these are of the same kind as the others.
"""

from functools import cached_property
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from simsplit.attacks.inverters import NOTHING, InverterConfig
from simsplit.attacks.inverting import Inverting


class TellingConfig(InverterConfig):
    """Base class of the fields of attacks that tell which of their readings is the private text."""

    looks: int = Field(default=1, ge=1, le=2)
    """Number of epochs that it observes; 2: of several readings, the one that comes in both is
    taken for the private text."""
    picks: Literal["surest", "strangest"] = "surest"
    """Which of several readings of one epoch it takes for the private text. surest: what the
    inverter is surest of. strangest: what has least in common with the server's public
    texts, as the texts that clients send along are public too."""

    @property
    def exposures(self) -> int:
        """Number of epochs in which it sees the targets' packets."""
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
    """Public texts, by the pairs of neighbouring tokens that they have."""

    def __init__(self, tokens_RL: Tensor, vocabulary: int, pad: int) -> None:
        self.vocabulary, self.pad = vocabulary, pad
        self.known = self._number_pairs(tokens_RL)

    def measure_familiarity(self, tokens_PBL: Tensor) -> Tensor:
        """Compute the share of each reading's pairs that public texts have: P x B.

        A pair counts once, and none with padding counts; a reading without a pair has share 1.
        """
        shares = [
            torch.isin(pairs, self.known).float().mean() if len(pairs) else torch.tensor(1.0)
            for pairs in map(self._number_pairs, tokens_PBL.flatten(0, 1))
        ]
        share_PB: Tensor = torch.stack(shares).to(tokens_PBL.device).view(tokens_PBL.shape[:2])
        return share_PB

    def _number_pairs(self, tokens: Tensor) -> Tensor:
        """Return a number for each different pair of tokens side by side in the last dimension."""
        first, second = tokens[..., :-1], tokens[..., 1:]
        sound = (tokens != self.pad) & (tokens != NOTHING)
        numbers = (first * self.vocabulary + second)[sound[..., :-1] & sound[..., 1:]]
        different: Tensor = numbers.unique()
        return different


def compute_agreement(one_PBL: Tensor, other_QBK: Tensor) -> Tensor:
    """Compute how many token pairs two readings of a text have in common, by length: P x Q x B.

    Pairs of neighbouring tokens count wherever they stand, since secret tokens shift positions. A
    pair counts once: padding and markup, which public texts share, repeat.
    """
    pairs = [torch.stack([x[..., :-1], x[..., 1:]], -1) for x in (one_PBL, other_QBK)]
    flat = torch.cat([pair.flatten(0, -2) for pair in pairs])
    known, numbers = flat.unique(dim=0, return_inverse=True)
    sizes = [pair[..., 0].numel() for pair in pairs]
    there = [
        torch.zeros(*pair.shape[:2], len(known), device=pair.device).scatter_(
            2, number.view(pair.shape[:3]), 1.0
        )
        for pair, number in zip(pairs, numbers.split(sizes), strict=True)
    ]
    common_PQB = torch.stack([(there[0] * each).sum(-1) for each in there[1]], 1)
    return common_PQB / max(1, one_PBL.shape[-1] - 1)
