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
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from simsplit.detectors.base import Detector, DetectorConfig, Scores, View, reading
from simsplit.detectors.readings import LEGS, Readings, Sampled, Signal
from simsplit.detectors.thresholds import CalibratedConfig, Side, Threshold
from simsplit.detectors.windows import Rounds
from simsplit.needs import Given, Need, Needs
from simsplit.packets import ClientId

Samples = dict[ClientId, Tensor]


class ByClassConfig(DetectorConfig, ABC):
    """Base of detectors that compare clients class by class, by labels that they infer."""

    signal: Signal = "payload"
    """What is compared: smashed data as sent (payload), or the trunk's outputs (features)."""
    classes: int | None = Field(default=None, ge=2)
    """Number of classes to look for, where none are told; null: as many as the task has."""

    @property
    @abstractmethod
    def fewest_trusted(self) -> int:
        """Trusted clients with fewer samples of a class judge nobody by it."""

    @property
    def sketched(self) -> tuple[Signal, ...]:
        """The signal that is compared, and the one that classes are inferred from."""
        return (self.signal, "features_grad")

    @property
    def needs(self) -> Needs:
        """Single samples and, under a U shape, their gradients, which reveal their classes."""
        by_sample = Need(Given.SAMPLES, "signal", LEGS[self.signal])
        classes = Need(Given.CLASSES)
        return (*super().needs, *reading((self.signal,), "signal"), by_sample, classes)


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
        classes = self.options.classes or view.num_classes
        inferred = view.readings.inferred
        if classes not in inferred:
            inferred[classes] = inferred_labels(view.readings, classes)
        labels = inferred[classes]
        if len(labels) < 3:
            return {}
        kept = view.readings.samples
        # who drops out in the middle of a step has sent a payload and never answered
        compared = {c: kept[c].stacked(self.options.signal)[: len(labels[c])] for c in labels}
        largest: dict[ClientId, float] = {}
        for label in range(classes):
            for client, away in self._differences(compared, labels, label).items():
                largest[client] = max(away, largest.get(client, 0.0))
        return {client: math.log(max(away, 1e-12)) for client, away in largest.items()}

    def _differences(self, compared: Samples, labels: Samples, label: int) -> dict[ClientId, float]:
        """Distances of each client's class means from the others', relative to chance."""
        mine = {client: rows[labels[client] == label].double() for client, rows in compared.items()}
        mine = {client: rows for client, rows in mine.items() if len(rows)}
        count = sum(map(len, mine.values()))
        if count < 2 * self.options.fewest:
            return {}
        together = torch.cat(list(mine.values()))
        total, variance = together.sum(0), together.var(0, correction=0).clamp_min(1e-12)
        means = {c: rows.mean(0) for c, rows in mine.items() if len(rows) >= self.options.fewest}
        root = self.options.root
        trusted = torch.cat([mine[c] for c in root if c in mine] or [together[:0]])
        found = {}
        for client, mean in means.items():
            if client in root:
                continue
            rows = len(mine[client])
            others = len(trusted) if root else count - rows
            if others < self.options.fewest:
                continue
            if root:
                beside = trusted.mean(0)
            elif self.options.reference == "mean":
                beside = (total - mean * rows) / others
            else:
                beside = torch.stack(list(means.values())).quantile(0.5, dim=0)
            size = rows * others / (rows + others)
            found[client] = size * float(((mean - beside) ** 2 / variance).mean())
        return found


def inferred_labels(readings: Readings, classes: int) -> Samples:
    """An inferred class for each kept sample of each client; only equality of classes counts."""
    samples = dict(sorted(readings.samples.items()))
    if any(kept.labels for kept in samples.values()):
        return {client: _told(kept) for client, kept in samples.items()}
    seen = {c: kept.stacked("features_grad") for c, kept in samples.items() if _answered(kept)}
    if not seen:
        return {}
    together = torch.nn.functional.normalize(torch.cat(list(seen.values())), dim=1)
    if len(together) < classes:
        return {}
    found = _clustered(together, classes)
    return dict(zip(seen, found.split([len(rows) for rows in seen.values()]), strict=True))


def _told(kept: Sampled) -> Tensor:
    return torch.cat(kept.labels).cpu()


def _answered(kept: Sampled) -> bool:
    return bool(kept.rows.get("features_grad"))


def _clustered(rows: Tensor, classes: int) -> Tensor:
    """k-means, single-threaded and from a fixed start, so that results are reproducible."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        fitted = KMeans(classes, n_init=4, max_iter=50, random_state=0).fit(rows.numpy())
    return torch.from_numpy(fitted.labels_).long()
