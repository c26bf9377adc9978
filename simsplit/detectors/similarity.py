"""Clients against each other: sybils that want the same are more alike than honest clients are.

FoolsGold (Fung, Yoon and Beschastnikh 2020) and CONTRA (Awan, Luo and Li 2021), which compare
updates accumulated over rounds. What a client contributes under split learning is the gradient that
it returns for the features, from which the trunk learns; that is the default signal here.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.base import SignalDetector, SignalDetectorConfig
from simsplit.detectors.readings import Signal
from simsplit.detectors.thresholds import FixedConfig, Side, Threshold
from simsplit.detectors.windows import Rounds
from simsplit.packets import ClientId
from simsplit.states import below


class UpdatesConfig(SignalDetectorConfig):
    """A detector of clients whose updates are too similar; scores are between 0 and 1."""

    signal: Signal = "features_grad"
    """What counts as a client's update: the gradient that it returns, or another signal."""
    window: Rounds = None
    """Over how many of the latest rounds updates are averaged; 0 or 1: the round alone; null: all
    rounds so far."""
    threshold: Threshold = FixedConfig(above=0.5)
    """Which scores flag a client."""
    side: ClassVar[Side] = "high"


class FoolsGoldConfig(UpdatesConfig):
    """One minus FoolsGold's weight: large for clients whose accumulated updates are similar."""

    kind: Literal["foolsgold"] = "foolsgold"
    confidence: float = Field(default=1.0, gt=0)
    """FoolsGold's kappa, the steepness of its logit."""

    def build(self) -> "FoolsGold":
        return FoolsGold(self)


class FoolsGold(SignalDetector):
    """Scores clients by FoolsGold: largest pairwise cosine, pardoning, logit."""

    def __init__(self, config: FoolsGoldConfig) -> None:
        super().__init__(config)
        self.confidence = config.confidence

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        """One minus each client's weight."""
        cosines = _cosines(means)
        largest = cosines.max(1).values
        # an honest client that happens to look like a sybil, but less than sybils like each other
        ratio = largest[:, None] / largest[None].clamp_min(1e-12)
        pardoned = torch.where(ratio < 1, cosines * ratio, cosines)
        weights = (1 - pardoned.max(1).values).clamp(0, 1)
        weights = weights / weights.max().clamp_min(1e-12)
        weights = weights.clamp(1e-5, 0.99)
        logit = self.confidence * (torch.log(weights / (1 - weights)) + 0.5)
        return 1 - logit.clamp(0, 1)


class ContraConfig(UpdatesConfig):
    """One minus CONTRA's reputation, which falls while a client resembles its nearest others."""

    kind: Literal["contra"] = "contra"
    nearest: int = Field(default=3, ge=1)
    """k: how many of the nearest other clients are compared."""
    alike: float = Field(default=0.1, ge=0)
    """How far above the median a client's alignment must be for its reputation to fall."""
    change: float = Field(default=0.1, gt=0, le=1)
    """delta: how much reputation changes per round."""

    @property
    def least_clients(self) -> int:
        """Two are as much aligned as each other, and so never above their median."""
        return 3

    def build(self) -> "Contra":
        return Contra(self)


class Contra(SignalDetector):
    """Scores clients by CONTRA: reputations from mean cosines to the nearest others."""

    def __init__(self, config: ContraConfig) -> None:
        super().__init__(config)
        self.options = config
        self._reputation: dict[ClientId, float] = {}

    def compare(self, clients: Sequence[ClientId], means: Tensor) -> Tensor:
        """One minus each client's reputation after this round."""
        near = min(self.options.nearest, len(clients) - 1)
        alignment = _cosines(means).topk(near, dim=1).values.mean(1)
        alike = alignment > alignment.median() + self.options.alike
        for client, fall in zip(clients, alike.tolist(), strict=True):
            step = -self.options.change if fall else self.options.change
            known = self._reputation.get(client, 1.0)
            self._reputation[client] = min(1.0, max(0.0, known + step))
        return torch.tensor([1 - self._reputation[client] for client in clients])

    def state(self) -> dict[str, Tensor]:
        """Accumulated updates, and every client's reputation."""
        held = super().state()
        for client, reputation in self._reputation.items():
            held[f"reputation.{client}"] = torch.tensor(reputation, dtype=torch.float64)
        return held

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        super().load(state)
        own = below(state, "reputation.")
        self._reputation = {int(client): float(value) for client, value in own.items()}


def _cosines(means: Tensor) -> Tensor:
    """Between all pairs; a client's own is left out."""
    unit = torch.nn.functional.normalize(means, dim=1)
    return (unit @ unit.T).fill_diagonal_(-1.0)
