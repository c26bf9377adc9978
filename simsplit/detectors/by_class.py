"""What detectors that compare clients class by class share: classes, and what varies within them.

The gradient that a U-shaped client returns for a sample's features gives its label away by its
direction; under a vanilla cut the server is told outright. So a round's samples are clustered by
it, and only equality of classes counts.
"""

from abc import ABC

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.base import DetectorConfig, View, reading
from simsplit.detectors.readings import LEGS, Readings, Sampled, Signal
from simsplit.needs import Given, Need, Needs
from simsplit.packets import ClientId

Samples = dict[ClientId, Tensor]

LEAST_GROUP = 4
"""Samples of a client's class that its covariance is taken of, at least."""
SMOOTHING = 0.1
"""Added to a direction's variance, as a share of the mean variance."""


class ByClassConfig(DetectorConfig, ABC):
    """Base of detectors that compare clients class by class, by labels that they infer."""

    signal: Signal = "payload"
    """What is compared: smashed data as sent (payload), or the trunk's outputs (features)."""
    classes: int | None = Field(default=None, ge=2)
    """Number of classes to look for, where none are told; null: as many as the task has."""

    @property
    def fewest_trusted(self) -> int:
        """Trusted clients with fewer samples of a class judge nobody by it."""
        return 0

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


def told(view: View) -> bool:
    """Whether clients send labels."""
    return any(kept.labels for kept in view.readings.samples.values())


def labelled(view: View, classes: int | None) -> tuple[Samples, int]:
    """The round's samples' classes by client, and how many classes there are.

    They are inferred once for all detectors that look for as many.
    """
    count = view.num_classes if told(view) else classes or view.num_classes
    inferred = view.readings.inferred
    if count not in inferred:
        inferred[count] = inferred_labels(view.readings, count)
    return inferred[count], count


def compared(view: View, signal: Signal, labels: Samples) -> Samples:
    """A signal of the samples that have a class, by client."""
    kept = view.readings.samples
    # who drops out in the middle of a step has sent a payload and never answered
    return {client: kept[client].stacked(signal)[: len(labels[client])] for client in labels}


def whitened(rows: Samples, labels: Samples, classes: int, directions: int) -> Tensor | None:
    """The top directions of the covariance within clients' classes, each over its deviation.

    None of too few samples.
    """
    apart = []
    for client, values in rows.items():
        for label in range(classes):
            group = values[labels[client] == label]
            if len(group) >= LEAST_GROUP:
                apart.append(group - group.mean(0))
    together = torch.cat(apart) if apart else torch.empty(0)
    if len(together) < 2 * directions:
        return None
    variances, vectors = torch.linalg.eigh(together.T @ together / (len(together) - len(apart)))
    most = min(directions, len(variances))
    least = SMOOTHING * variances.clamp_min(0).mean()
    scaled = (variances[-most:].clamp_min(0) + least).clamp_min(1e-12).rsqrt()
    white: Tensor = vectors[:, -most:] * scaled
    return white


def sums(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """By class, the sum of its rows, and how many there are."""
    counts = labels.bincount(minlength=classes).double()
    return rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows), counts


def inferred_labels(readings: Readings, classes: int) -> Samples:
    """An inferred class for each kept sample of each client; only equality of classes counts."""
    samples = dict(sorted(readings.samples.items()))
    if any(kept.labels for kept in samples.values()):
        return {client: _labels(kept) for client, kept in samples.items()}
    seen = {c: kept.stacked("features_grad") for c, kept in samples.items() if _answered(kept)}
    if not seen:
        return {}
    together = torch.nn.functional.normalize(torch.cat(list(seen.values())), dim=1)
    if len(together) < classes:
        return {}
    found = _clustered(together, classes)
    return dict(zip(seen, found.split([len(rows) for rows in seen.values()]), strict=True))


def _labels(kept: Sampled) -> Tensor:
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
