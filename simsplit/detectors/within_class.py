"""This module compares clients with each other within each inferred class; it is in no paper.

Under label skew the mean payloads of honest clients differ too, so a cosine to the consensus fails.
But the direction of the gradient that a U-shaped client returns for a sample's features reveals the
sample's label (under a vanilla cut clients send labels). So the samples of a round are clustered by
gradient, and clients are compared within each cluster, which label skew does not affect: samples
that a backdoor relabels differ from the others of their new class.

A client's score in a class is the mean over the sketch's directions of the squared difference
between its mean and the clients' median (or the trusted clients' mean), relative to chance. The
largest score over classes counts, its logarithm is averaged over rounds, and a calibrated threshold
judges its robust z.
"""

import math
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator

from simsplit.detectors.by_class import ByClassConfig, ByClient, infer_classes, select_samples
from simsplit.detectors.detector import Detector, RoundView, Scores
from simsplit.detectors.thresholds import CalibratedConfig, Rounds, Threshold
from simsplit.legs import ClientId


class WithinClassConfig(ByClassConfig):
    """Distance of each client's samples from the others' of the same inferred class."""

    kind: Literal["within_class"] = "within_class"
    reference: Literal["median", "mean", "root"] = "median"
    """Value with which a client's mean of a class is compared: `median`, the median over clients,
    which colluding clients move only if they are most of the clients with the class; `mean`, the
    mean of all other clients' samples; `root`, the mean of trusted clients' samples."""
    root: tuple[ClientId, ...] = Field(default=(), validate_default=True)
    """Numbers of the trusted clients, with `reference: root`; malicious clients are drawn among the
    others."""
    window: Rounds = None
    """Number of latest rounds over which scores are averaged; 0 or 1: only the current round; null:
    all rounds so far."""
    fewest: int = Field(default=4, ge=2)
    """Smallest number of a client's samples of a class with which it is judged."""
    floor: float = Field(default=0.2, ge=0)
    """Smallest standard deviation of honest clients' scores that is assumed, so that small
    differences between nearly equal clients flag none of them."""
    threshold: Threshold = CalibratedConfig()
    """Threshold that decides which scores flag a client."""
    side = "high"

    @field_validator("root")
    @classmethod
    def _check_root(
        cls, value: tuple[ClientId, ...], others: ValidationInfo
    ) -> tuple[ClientId, ...]:
        asked = others.data.get("reference") == "root"
        if asked and not value:
            raise ValueError("must name a trusted client, such as [0], with reference: root")
        if value and not asked:
            raise ValueError("is for reference: root; set that, or leave it out")
        return value

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        return self.root

    @property
    def fewest_trusted(self) -> int:
        return self.fewest

    @property
    def title(self) -> str:
        beside = "_root" if self.trusted else ""
        return self.name or f"within_class_{self.signal}{beside}"

    def build(self) -> "WithinClass":
        return WithinClass(self)


class WithinClass(Detector):
    """A detector that scores clients by the logarithm of their largest distance within a class."""

    config: WithinClassConfig

    def __init__(self, config: WithinClassConfig) -> None:
        super().__init__(config)
        self.floor = config.floor

    def score(self, view: RoundView) -> Scores:
        """Score the clients that can be compared in some class."""
        labels, classes = infer_classes(view, self.config.classes)
        if len(labels) < 3:
            return {}
        rows = select_samples(view, self.config.signal, labels)
        largest: dict[ClientId, float] = {}
        for label in range(classes):
            for client, away in self._measure_differences(rows, labels, label).items():
                largest[client] = max(away, largest.get(client, 0.0))
        return {client: math.log(max(away, 1e-12)) for client, away in largest.items()}

    def _measure_differences(
        self, samples: ByClient, labels: ByClient, label: int
    ) -> dict[ClientId, float]:
        """Return the distance of each client's class mean from the others', relative to chance."""
        mine = {client: rows[labels[client] == label].double() for client, rows in samples.items()}
        mine = {client: rows for client, rows in mine.items() if len(rows)}
        count = sum(map(len, mine.values()))
        if count < 2 * self.config.fewest:
            return {}
        together = torch.cat(list(mine.values()))
        total, variance = together.sum(0), together.var(0, correction=0).clamp_min(1e-12)
        means = {c: rows.mean(0) for c, rows in mine.items() if len(rows) >= self.config.fewest}
        root = self.config.root
        trusted = torch.cat([mine[c] for c in root if c in mine] or [together[:0]])
        if not means:
            return {}
        # quantile: torch's median would take the lower of two middle values
        middle = trusted.mean(0) if root else torch.stack(list(means.values())).quantile(0.5, dim=0)
        distances = {}
        for client, mean in means.items():
            if client in root:
                continue
            rows = len(mine[client])
            others = len(trusted) if root else count - rows
            if others < self.config.fewest:
                continue
            by_mean = self.config.reference == "mean"
            beside = (total - mean * rows) / others if by_mean else middle
            # the variance of a difference of two means is (1 / rows + 1 / others) times that of
            # samples: divided by it, chance gives 1
            size = rows * others / (rows + others)
            distances[client] = size * float(((mean - beside) ** 2 / variance).mean())
        return distances
