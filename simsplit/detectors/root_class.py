"""This module compares clients with a trusted one within each inferred class; it is in no paper.

If labels are skewed, only one or two clients have a class, and they can only be compared with a
root client: a client of the server that trains too, with a few clean samples of every class. All of
a client's payloads also drift with its head and its turn, whatever its samples are; so the
difference in one class is compared with the difference in the client's other classes.

    white = top directions of the covariance within clients' classes, each over sqrt(its variance)
    d1 = client's mean of a class - root's;           h1 = 1/n + 1/n_root
    d2 = d1 - weighted mean of d1 over other classes; h2 = h1 + sum of w^2 v
    effect(d, h) = 10/p ( |d|^2 - p h - 3 sqrt(2 p) h ):  a lower bound of the squared difference
    a class's score is the smaller of effect(d1, h1) and effect(d2, h2)

A client's score is the largest over classes of the mean over rounds, and has an absolute meaning:
scores of honest clients are below zero. The inferred classes have new numbers in every round; they
are matched with those of the round before by the gradients from which they were inferred.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.detectors.by_class import (
    LEAST_GROUP,
    ByClassConfig,
    ByClient,
    are_labels_sent,
    compute_whitening,
    infer_classes,
    select_samples,
    sum_by_class,
)
from simsplit.detectors.detector import Detector, RoundView, Scores
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold
from simsplit.legs import ClientId

LEAST_ELSE = 2
"""Smallest number of a client's samples of another class that enters a contrast; the root client
must have `LEAST_GROUP` of them."""


class RootClassConfig(ByClassConfig):
    """Distance of each client's samples from a trusted client's of the same inferred class."""

    kind: Literal["root_class"] = "root_class"
    root: tuple[ClientId, ...] = Field(default=(0,), min_length=1)
    """Numbers of the trusted clients; malicious clients are drawn among the others."""
    signal: Literal["payload"] = "payload"
    """Signal that is compared: `payload`, smashed data as sent. The trunk's outputs drift with each
    client's turn."""
    window: Rounds = None
    """Number of latest rounds over which a class is averaged; 0 or 1: only the current round; null:
    all rounds so far."""
    since: int = Field(default=4, ge=1)
    """First round that counts; earlier payloads say little, since heads have hardly learned."""
    directions: int = Field(default=32, ge=1)
    """Number of directions in which samples are compared, those of the largest variance."""
    fewest: int = Field(default=20, ge=2)
    """Smallest number of a client's samples of a class in a round with which it is judged."""
    fewest_root: int = Field(default=8, ge=2)
    """Smallest number of the root clients' samples of a class in a round with which the class is
    judged."""
    threshold: Threshold = FixedConfig(above=0.3)
    """Threshold that decides which scores flag a client; scores have an absolute meaning."""
    side = "high"

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        return self.root

    @property
    def fewest_trusted(self) -> int:
        return self.fewest_root

    def build(self) -> "RootClass":
        return RootClass(self)


class RootClass(Detector):
    """A detector that scores clients by the largest difference of a class from the root's."""

    config: RootClassConfig
    averages = False  # each class's score is averaged over the window already

    def __init__(self, config: RootClassConfig) -> None:
        super().__init__(config)
        self._centres: Tensor | None = None
        """Mean direction of the gradients of each of the last round's classes."""
        # Each client's effects: a row per round, a column per class; NaN if it is not judged.
        self._effects = self.remember("effects")

    def score(self, view: RoundView) -> Scores:
        """Score the clients that can be compared in some class, over the window."""
        labels, classes = self._match_labels(view)
        window = self.config.window
        if view.round >= self.config.since and set(labels) & set(self.config.root):
            rows = {
                c: x.double() for c, x in select_samples(view, self.config.signal, labels).items()
            }
            for client, effects in self._compare(rows, labels, classes).items():
                known = self._effects.get(client, effects.new_empty(0, len(effects)))
                kept = torch.cat([known, effects[None]])
                self._effects[client] = kept if window is None else kept[-max(1, window) :]
        scores = {}
        # A class is judged in two rounds or more; a window of one round makes one enough.
        least = 1 if window is not None and window <= 1 else 2
        for client in (each for each in labels if each in self._effects):
            kept = self._effects[client]
            enough = (~kept.isnan()).sum(0) >= least
            if enough.any():
                scores[client] = float(kept.nanmean(0)[enough].max())
        return scores

    def _match_labels(self, view: RoundView) -> tuple[ByClient, int]:
        """Return the samples' classes, numbered as in the last round, and the number of classes."""
        labels, classes = infer_classes(view, self.config.classes)
        if not labels or are_labels_sent(view):
            return labels, classes  # labels that clients send mean the same in every round
        grads = torch.cat(list(select_samples(view, "features_grad", labels).values()))
        centres, _ = _average_by_class(
            normalize(grads.double()), torch.cat(list(labels.values())), classes
        )
        order = torch.arange(classes)
        if self._centres is not None and self._centres.shape == centres.shape:
            from scipy.optimize import linear_sum_assignment

            # The number that each class had in the round before.
            alike = normalize(centres) @ normalize(self._centres).T
            order = torch.from_numpy(linear_sum_assignment(-alike.numpy())[1])
        self._centres = torch.empty_like(centres)
        self._centres[order] = centres
        return {client: order[each] for client, each in labels.items()}, classes

    def _compare(self, rows: ByClient, labels: ByClient, classes: int) -> dict[ClientId, Tensor]:
        """Return each client's effects of the round, by class."""
        white = compute_whitening(rows, labels, classes, self.config.directions)
        if white is None:
            return {}
        stats = {
            client: _average_by_class(rows[client] @ white, labels[client], classes)
            for client in rows
        }
        root = [client for client in rows if client in self.config.root]
        together = [torch.cat([each[client] for client in root]) for each in (rows, labels)]
        base = _average_by_class(together[0] @ white, together[1], classes)
        others = [client for client in rows if client not in self.config.root]
        return {client: self._measure_effects(stats[client], base) for client in others}

    def _measure_effects(self, mine: "Classes", root: "Classes") -> Tensor:
        """Return, by class, how much a client's mean differs from the root's beyond chance."""
        (means, counts), (root_means, root_counts) = mine, root
        apart = means - root_means
        chance = 1 / counts.clamp_min(1) + 1 / root_counts.clamp_min(1)
        elsewhere = (counts >= LEAST_ELSE) & (root_counts >= LEAST_GROUP)
        effects = torch.full((len(counts),), math.nan, dtype=torch.float64)
        for label in range(len(counts)):
            if counts[label] < self.config.fewest or root_counts[label] < self.config.fewest_root:
                continue
            effect = _bound_effect(apart[label], chance[label])
            others = elsewhere.clone()
            others[label] = False
            if others.any():
                weights = (1 / chance[others]) / (1 / chance[others]).sum()
                contrast = apart[label] - weights @ apart[others]
                spread = chance[label] + (weights.square() * chance[others]).sum()
                effect = min(effect, _bound_effect(contrast, spread))
            effects[label] = effect
        return effects

    def state(self) -> dict[str, Tensor]:
        """Return also the classes' gradients."""
        centres = {} if self._centres is None else {"centres": self._centres}
        return {**super().state(), **centres}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._centres = state.get("centres")


Classes = tuple[Tensor, Tensor]
"""The mean and the number of rows of each class."""


def _average_by_class(rows: Tensor, labels: Tensor, classes: int) -> Classes:
    total, counts = sum_by_class(rows, labels, classes)
    return total / counts.clamp_min(1)[:, None], counts


def _bound_effect(apart: Tensor, chance: Tensor) -> float:
    """Return ten times a lower bound of the squared difference of two means, per direction."""
    size = len(apart)
    beyond = apart.square().sum() - (size + 3 * math.sqrt(2 * size)) * chance
    return float(10 * beyond / size)
