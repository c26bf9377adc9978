"""This module finds sybils: attackers with the same goal are more alike than honest clients.

It implements FoolsGold (Fung, Yoon and Beschastnikh, 2020) and CONTRA (Awan, Luo and Li, 2021),
which compare updates accumulated over rounds. Under split learning a client's update is the
gradient that it returns for the features, from which the trunk learns; it is the default signal.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.detector import SignalDetector, SignalDetectorConfig
from simsplit.detectors.readings import Signal
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold
from simsplit.legs import ClientId


class UpdatesConfig(SignalDetectorConfig):
    """The base of detectors of clients with too similar updates; scores are between 0 and 1."""

    signal: Signal = "features_grad"
    """Signal that counts as a client's update: `features_grad`, the gradient that the client
    returns, or another signal."""
    window: Rounds = None
    """Number of latest rounds over which updates are averaged; 0 or 1: only the current round;
    null: all rounds so far."""
    threshold: Threshold = FixedConfig(above=0.5)
    """Threshold that decides which scores flag a client."""
    side = "high"


class FoolsGoldConfig(UpdatesConfig):
    """One minus FoolsGold's weight, which is low for clients with similar accumulated updates."""

    kind: Literal["foolsgold"] = "foolsgold"
    confidence: float = Field(default=1.0, gt=0)
    """Steepness of FoolsGold's logit (kappa)."""

    def build(self) -> "FoolsGold":
        return FoolsGold(self)


class FoolsGold(SignalDetector):
    """A detector that scores clients by FoolsGold: largest pairwise cosine, pardoning, logit."""

    config: FoolsGoldConfig

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        cosines = _compute_cosines(means)
        # In the authors' code a client's own cosine is 0, so none is less alike than that.
        largest = cosines.max(1).values.clamp_min(0)
        # pardon an honest client that resembles a sybil, but less than sybils resemble each other
        ratio = largest[:, None] / largest[None].clamp_min(1e-12)
        pardoned = torch.where(ratio < 1, cosines * ratio, cosines)
        weights = (1 - pardoned.max(1).values).clamp(0, 1)
        weights = weights / weights.max().clamp_min(1e-12)
        # the logit of 0 or 1 would be infinite
        weights = weights.clamp(1e-5, 0.99)
        logit = self.config.confidence * (torch.log(weights / (1 - weights)) + 0.5)
        return 1 - logit.clamp(0, 1)


class ContraConfig(UpdatesConfig):
    """One minus CONTRA's reputation, which falls while a client resembles its nearest others."""

    kind: Literal["contra"] = "contra"
    nearest: int = Field(default=3, ge=1)
    """Number of nearest other clients with which a client is compared (k)."""
    alike: float = Field(default=0.1, ge=0)
    """Distance above the median alignment from which a client's reputation falls."""
    change: float = Field(default=0.1, gt=0, le=1)
    """Change of a client's reputation per round (delta)."""

    # Two clients have equal alignments, so neither is ever above the median.
    least_clients: ClassVar[int] = 3

    def build(self) -> "Contra":
        return Contra(self)


class Contra(SignalDetector):
    """A detector that scores clients by CONTRA: reputations from cosines to the nearest others."""

    config: ContraConfig

    def __init__(self, config: ContraConfig) -> None:
        super().__init__(config)
        self._reputation = self.remember("reputation")

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        near = min(self.config.nearest, len(clients) - 1)
        alignment = _compute_cosines(means).topk(near, dim=1).values.mean(1)
        alike = alignment > alignment.median() + self.config.alike
        for client, fall in zip(clients, alike.tolist(), strict=True):
            step = -self.config.change if fall else self.config.change
            known = float(self._reputation.get(client, 1.0))
            changed = min(1.0, max(0.0, known + step))
            self._reputation[client] = torch.tensor(changed, dtype=torch.float64)
        return torch.tensor([1 - float(self._reputation[client]) for client in clients])


def _compute_cosines(means: Tensor) -> Tensor:
    """Return the cosines of all pairs; a client's own is set to -1, so that it is never nearest."""
    unit = torch.nn.functional.normalize(means, dim=1)
    return (unit @ unit.T).fill_diagonal_(-1.0)
