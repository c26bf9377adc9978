"""This module judges single samples within each class, as detectors of backdoored data sets do.

Those detectors get a trained network's activations of a labelled data set, and remove samples. A
server of split learning has smashed data instead, whose classes it infers (`by_class`), and has
nothing to remove: a client is scored. For each class,

    suspicious   a sample that a detector tells from the class's others
    usual        the median over other clients of the share of suspicious samples
    score        the largest over classes of: a lower bound of the share of the client's samples
                 that are suspicious, minus the usual share

so scores of honest clients are about zero or below, whatever shape the classes have.
"""

import math
from abc import ABC, abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.by_class import ByClassConfig, infer_classes, select_samples
from simsplit.detectors.detector import Detector, RoundView, Scores
from simsplit.detectors.strays import compute_lower_bound
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold

_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


class PerSampleConfig(ByClassConfig, ABC):
    """The base of detectors that tell suspicious samples from others of their class."""

    window: Rounds = 1
    """Number of latest rounds over which a client's score is averaged; 0 or 1: only the current
    round; null: all rounds so far."""
    fewest: int = Field(default=4, ge=2)
    """Smallest number of a client's samples of a class in a round with which it is judged."""
    fewest_others: int = Field(default=12, ge=2)
    """Smallest number of other clients' samples of a class with which the class is judged."""
    threshold: Threshold = FixedConfig(above=0.1)
    """Threshold that decides which scores flag a client; scores have an absolute meaning."""
    side = "high"

    @abstractmethod
    def judge_class(self, rows_ND: Tensor, labels_N: Tensor, mine_M: Tensor) -> Tensor:
        """Return a mask (M) of the suspicious samples of one class, whose places are `mine_M`.

        `rows_ND` and `labels_N` have the samples of all clients and classes. A class has at least
        twice `fewest` samples, and others are not judged.
        """

    def build(self) -> "PerSample":
        return PerSample(self)


class PerSample(Detector):
    """A detector that scores clients by their share of suspicious samples."""

    config: PerSampleConfig

    def score(self, view: RoundView) -> Scores:
        """Score the clients that have enough samples of some class."""
        labels, classes = infer_classes(view, self.config.classes)
        if len(labels) < 2:
            return {}
        rows = select_samples(view, self.config.signal, labels)
        owners = torch.arange(len(rows)).repeat_interleave(
            torch.tensor([len(each) for each in rows.values()])
        )
        together = torch.cat(list(rows.values())).double()
        classed = torch.cat(list(labels.values()))
        suspicious = torch.zeros(len(together), dtype=torch.bool)
        for label in range(classes):
            mine = (classed == label).nonzero()[:, 0]
            if len(mine) >= 2 * self.config.fewest:
                suspicious[mine] = self.config.judge_class(together, classed, mine)
        places = classed * len(rows) + owners
        size = classes * len(rows)
        counts = places.bincount(minlength=size).view(classes, len(rows)).double()
        hits = places[suspicious].bincount(minlength=size).view(classes, len(rows)).double()
        scores = {}
        for index, client in enumerate(rows):
            score = self._score_client(index, hits, counts)
            if score > -math.inf:
                scores[client] = score
        return scores

    def _score_client(self, index: int, hits_CK: Tensor, counts_CK: Tensor) -> float:
        """Return a client's largest score over classes; -inf if no class can be judged."""
        others = torch.arange(counts_CK.shape[1]) != index
        best = -math.inf
        for hits_K, counts_K in zip(hits_CK, counts_CK, strict=True):
            beside = others & (counts_K > 0)
            enough = counts_K[beside].sum() >= self.config.fewest_others
            if counts_K[index] < self.config.fewest or not enough:
                continue
            # The median, so that another attacker's samples do not make this one's usual.
            usual = (hits_K[beside] / counts_K[beside]).quantile(0.5)
            bound = compute_lower_bound(hits_K[index], counts_K[index])
            best = max(best, float(bound - usual))
        return best


def measure_robust_z(values_N: Tensor) -> Tensor:
    """Return each value's distance from the median, in robust standard deviations."""
    away = values_N - values_N.quantile(0.5)
    spread = _MAD * away.abs().quantile(0.5)
    # More than half of the values may be equal; then the mean deviation is the spread.
    spread = spread if spread > 0 else away.abs().mean()
    return away / spread if spread > 0 else torch.zeros_like(away)


def project_on_directions(rows_ND: Tensor, most: int) -> Tensor:
    """Return the coordinates of rows along the top principal directions of all of them."""
    centred = rows_ND - rows_ND.mean(0)
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    along: Tensor = centred @ vectors[:, -min(most, rows_ND.shape[1]) :].flip(1)
    return along
