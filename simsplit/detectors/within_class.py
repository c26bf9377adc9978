"""Clients against each other within each class, which the server infers: in none of the papers.

Under label skew clients' mean payloads differ whether or not anybody is malicious, which is where a
cosine to the consensus fails. But the gradient that a U-shaped client returns for a sample's
features gives its label away by its direction (under a vanilla cut the server is told outright). So
a round's samples are clustered by it, and clients are compared within each cluster, where skew no
longer shows: what a backdoor relabels looks like something else than the rest of its new class.

A client's score in a class is the mean over the sketch's directions of the squared difference
between its mean and the clients' median (or trusted clients' mean), in units of what chance would
give; the largest over classes counts, its logarithm is averaged over rounds, and its robust z is
held against a calibrated cut.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator

from simsplit.detectors.base import Detector, Scores, View
from simsplit.detectors.by_class import ByClassConfig, Samples, compared, labelled
from simsplit.detectors.thresholds import CalibratedConfig, Side, Threshold
from simsplit.detectors.windows import Rounds
from simsplit.packets import ClientId


class WithinClassConfig(ByClassConfig):
    """Distance of each client's samples from the others' of the same inferred class."""

    kind: Literal["within_class"] = "within_class"
    reference: Literal["median", "mean", "root"] = "median"
    """What a client's class mean is compared with. median: over clients, value by value, which
    several colluding clients do not move, unless they are most of those who have the class. mean:
    of all other clients' samples. root: of trusted clients' samples."""
    root: tuple[ClientId, ...] = Field(default=(), validate_default=True)
    """The trusted clients of reference: root; malicious ones are drawn among the others."""
    window: Rounds = None
    """Over how many of the latest rounds scores are averaged; 0 or 1: the round alone; null: all
    rounds so far."""
    fewest: int = Field(default=4, ge=2)
    """Clients with fewer samples of a class are not judged by it."""
    floor: float = Field(default=0.2, ge=0)
    """Smallest standard deviation of honest clients' scores to assume, so that small differences
    between nearly equal clients flag nobody."""
    threshold: Threshold = CalibratedConfig()
    """Which scores flag a client."""
    side: ClassVar[Side] = "high"

    @field_validator("root")
    @classmethod
    def _named_if_compared_with(
        cls, value: tuple[ClientId, ...], others: ValidationInfo
    ) -> tuple[ClientId, ...]:
        asked = others.data.get("reference") == "root"
        if asked and not value:
            raise ValueError("reference: root needs at least one trusted client, such as [0]")
        if value and not asked:
            raise ValueError("trusted clients are for reference: root; set that, or leave it out")
        return value

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        """The clients that others are compared with, if it is those."""
        return self.root

    @property
    def fewest_trusted(self) -> int:
        """As of any other client."""
        return self.fewest

    @property
    def title(self) -> str:
        """Its kind, the signal it compares, and with whom, if with trusted clients."""
        beside = "_root" if self.trusted else ""
        return self.name or f"within_class_{self.signal}{beside}"

    def build(self) -> "WithinClass":
        return WithinClass(self)


class WithinClass(Detector):
    """Scores clients by the logarithm of their largest distance within a class."""

    def __init__(self, config: WithinClassConfig) -> None:
        super().__init__(config)
        self.options = config
        self.floor = config.floor

    def scores(self, view: View) -> Scores:
        """Scores of the clients that can be compared in some class."""
        labels, classes = labelled(view, self.options.classes)
        if len(labels) < 3:
            return {}
        rows = compared(view, self.options.signal, labels)
        largest: dict[ClientId, float] = {}
        for label in range(classes):
            for client, away in self._differences(rows, labels, label).items():
                largest[client] = max(away, largest.get(client, 0.0))
        return {client: math.log(max(away, 1e-12)) for client, away in largest.items()}

    def _differences(self, samples: Samples, labels: Samples, label: int) -> dict[ClientId, float]:
        """Distances of each client's class means from the others', relative to chance."""
        mine = {client: rows[labels[client] == label].double() for client, rows in samples.items()}
        mine = {client: rows for client, rows in mine.items() if len(rows)}
        count = sum(map(len, mine.values()))
        if count < 2 * self.options.fewest:
            return {}
        together = torch.cat(list(mine.values()))
        total, variance = together.sum(0), together.var(0, correction=0).clamp_min(1e-12)
        means = {c: rows.mean(0) for c, rows in mine.items() if len(rows) >= self.options.fewest}
        root = self.options.root
        trusted = torch.cat([mine[c] for c in root if c in mine] or [together[:0]])
        if not means:
            return {}
        middle = trusted.mean(0) if root else torch.stack(list(means.values())).quantile(0.5, dim=0)
        found = {}
        for client, mean in means.items():
            if client in root:
                continue
            rows = len(mine[client])
            others = len(trusted) if root else count - rows
            if others < self.options.fewest:
                continue
            by_mean = self.options.reference == "mean"
            beside = (total - mean * rows) / others if by_mean else middle
            size = rows * others / (rows + others)
            found[client] = size * float(((mean - beside) ** 2 / variance).mean())
        return found
