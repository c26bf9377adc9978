"""This module infers samples' classes for detectors that compare clients class by class.

The direction of the gradient that a U-shaped client returns for a sample's features reveals the
sample's label; under a vanilla cut clients send labels. So the samples of a round are clustered by
gradient. The clusters have no names: only whether two samples are of the same class is known.
"""

from abc import ABC

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.detector import DetectorConfig, RoundView, need_signals
from simsplit.detectors.readings import LEGS, Readings, Signal
from simsplit.legs import ClientId
from simsplit.needs import Given, Need, Needs

ByClient = dict[ClientId, Tensor]
"""A row or a label per sample, by client."""

LEAST_GROUP = 4
"""Smallest number of a client's samples of a class that enter the covariance."""
SMOOTHING = 0.1
"""Share of the mean variance that is added to each direction's variance."""


class ByClassConfig(DetectorConfig, ABC):
    """The base of detectors that compare clients class by class, by inferred labels."""

    signal: Signal = "payload"
    """Signal that is compared: `payload`, smashed data as sent; `features`, the trunk's outputs."""
    classes: int | None = Field(default=None, ge=2)
    """Number of classes to infer if clients send no labels; null: the task's number of classes."""

    @property
    def fewest_trusted(self) -> int:
        """Smallest number of trusted clients' samples with which a class is judged."""
        return 0

    @property
    def sketched_signals(self) -> tuple[Signal, ...]:
        """The compared signal, and the signal from which classes are inferred."""
        return (self.signal, "features_grad")

    @property
    def needs(self) -> Needs:
        """Payloads of single samples, and labels or gradients, which reveal their classes."""
        by_sample = Need(Given.SAMPLES, "signal", LEGS[self.signal])
        classes = Need(Given.CLASSES)
        return (*super().needs, *need_signals((self.signal,), "signal"), by_sample, classes)


def are_labels_sent(view: RoundView) -> bool:
    """Return whether clients send labels."""
    return any(kept.labels for kept in view.readings.samples.values())


def infer_classes(view: RoundView, classes: int | None) -> tuple[ByClient, int]:
    """Return the classes of the round's samples by client, and the number of classes.

    They are inferred once for all detectors that ask for the same number.
    """
    count = view.num_classes if are_labels_sent(view) else classes or view.num_classes
    inferred = view.readings.inferred
    if count not in inferred:
        inferred[count] = infer_labels(view.readings, count)
    return inferred[count], count


def select_samples(view: RoundView, signal: Signal, labels: ByClient) -> ByClient:
    """Return a signal of the samples whose class is known, by client."""
    kept = view.readings.samples
    # a client that drops out within a step has sent a payload and no gradient
    return {client: kept[client].stack(signal)[: len(labels[client])] for client in labels}


def compute_whitening(
    rows: ByClient, labels: ByClient, classes: int, directions: int
) -> Tensor | None:
    """Return the top directions of the covariance within clients' classes, over their deviations.

    Return None if there are too few samples.
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


def sum_by_class(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of rows of each class."""
    counts = labels.bincount(minlength=classes).double()
    return rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows), counts


def infer_labels(readings: Readings, classes: int) -> ByClient:
    """Infer the class of each kept sample; only equality of the classes has a meaning."""
    samples = dict(sorted(readings.samples.items()))
    if any(kept.labels for kept in samples.values()):
        # A client that drops out in its first step has sent no labels.
        labelled = {client: kept.labels for client, kept in samples.items() if kept.labels}
        return {client: torch.cat(labels).cpu() for client, labels in labelled.items()}
    with_gradients = {c: kept for c, kept in samples.items() if kept.rows.get("features_grad")}
    seen = {client: kept.stack("features_grad") for client, kept in with_gradients.items()}
    if not seen:
        return {}
    together = torch.nn.functional.normalize(torch.cat(list(seen.values())), dim=1)
    if len(together) < classes:
        return {}
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # One thread and a fixed start, so that results are reproducible.
    with threadpool_limits(1):
        fitted = KMeans(classes, n_init=4, max_iter=50, random_state=0).fit(together.numpy())
    clusters = torch.from_numpy(fitted.labels_).long()
    return dict(zip(seen, clusters.split([len(rows) for rows in seen.values()]), strict=True))
