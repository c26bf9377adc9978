"""This module finds samples that look like another class of other clients; it is in no paper.

A backdoor relabels samples. Until the heads have learned the trigger, a relabelled sample looks
like the class that it was taken from, and other clients show what that class looks like. So no
client must be trusted, a client with a class of its own is compared with all classes of others, and
there may be many attackers, as long as they do not have most samples of the classes that they
relabel.

    white   top directions of the covariance within clients' classes, each over its deviation
    centre  a class's mean over all clients except the judged one
    stray   a sample that is nearer to another class's centre than to its own class's, and not
            farther from it than most of that class's own samples
    score   the largest over classes of: a lower bound of the share of strays, minus the share
            that is usual among other clients' samples of most classes

Scores have an absolute meaning: scores of honest clients are about zero or below, also if classes
overlap, since the usual share is then high. A head learns the trigger within a few rounds, which
hides the strays. So a client is judged by the first rounds in which it takes part, and a client
that poisons later is missed; `within_class` judges later rounds too.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.by_class import (
    ByClassConfig,
    ByClient,
    compute_whitening,
    infer_classes,
    select_samples,
    sum_by_class,
)
from simsplit.detectors.detector import Detector, RoundView, Scores
from simsplit.detectors.thresholds import FixedConfig, Rounds, Threshold
from simsplit.packets import ClientId
from simsplit.states import select_below

SURE = 3.0
"""Number of standard deviations by which the lower bound of a share is below the share."""


class MislabelledConfig(ByClassConfig):
    """Share of a client's samples of a class that look like another class of other clients."""

    kind: Literal["mislabelled"] = "mislabelled"
    signal: Literal["payload", "features"] = "payload"
    """Signal that is compared: `payload`, smashed data as sent, or `features`, the trunk's outputs.
    Gradients are not allowed: classes are inferred from them, so no sample would look like another
    class."""
    window: Rounds = 1
    """Number of a client's first rounds over which its score is averaged; later rounds do not
    change it. null: all rounds."""
    directions: int = Field(default=32, ge=1)
    """Number of directions in which samples are compared, those of the largest variance."""
    inside: float = Field(default=0.95, gt=0, lt=1)
    """A sample looks like a class if it is within the distance from the class's centre that holds
    this share of the class's own samples."""
    usual: float = Field(default=0.8, gt=0, lt=1)
    """Quantile over classes of the share of strays among all other clients' samples that counts as
    usual."""
    fewest_others: int = Field(default=12, ge=2)
    """Smallest number of other clients' samples of a class with which the class is compared."""
    threshold: Threshold = FixedConfig(above=0.1)
    """Threshold that decides which scores flag a client; scores have an absolute meaning."""
    side = "high"

    def build(self) -> "Mislabelled":
        return Mislabelled(self)


class Mislabelled(Detector):
    """A detector that scores clients by how much a class's share of strays exceeds the usual."""

    config: MislabelledConfig

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        self._first_rounds: dict[ClientId, tuple[float, int]] = {}
        """The sum of each client's scores in its first rounds, and the number of these rounds."""

    def score(self, view: RoundView) -> Scores:
        """Return the mean scores over their first rounds of the clients that could be compared."""
        # a round costs time: skip it if no client is within its first rounds
        if any(self._is_open(client) for client in view.readings.samples):
            for client, score in self._score_round(view).items():
                self._remember(client, score)
        seen = sorted(view.readings.samples)
        known = {
            client: self._first_rounds[client] for client in seen if client in self._first_rounds
        }
        return {client: total / rounds for client, (total, rounds) in known.items()}

    def pool_scores(self, view: RoundView) -> Scores:
        """Return the scores unchanged: they are averaged over the first rounds already."""
        return self.score(view)

    def _is_open(self, client: ClientId) -> bool:
        window = self.config.window
        rounds = self._first_rounds.get(client, (0.0, 0))[1]
        return window is None or rounds < max(1, window)

    def _remember(self, client: ClientId, score: float) -> None:
        if self._is_open(client):
            total, rounds = self._first_rounds.get(client, (0.0, 0))
            self._first_rounds[client] = total + score, rounds + 1

    def _score_round(self, view: RoundView) -> Scores:
        """Score by this round's samples the clients with a class that others have too."""
        labels, classes = infer_classes(view, self.config.classes)
        rows = {c: x.double() for c, x in select_samples(view, self.config.signal, labels).items()}
        white = compute_whitening(rows, labels, classes, self.config.directions) if labels else None
        if white is None:
            return {}
        counts, strays = self._count_strays(
            {c: x @ white for c, x in rows.items()}, labels, classes
        )
        is_judged = ~strays.isnan()
        judged, strayed = counts * is_judged, strays.nan_to_num()
        scores = {}
        for row, client in enumerate(rows):
            others, away = judged.sum(0) - judged[row], strayed.sum(0) - strayed[row]
            mine, known = judged[row] > 0, others >= self.config.fewest_others
            if mine.any() and known.any():
                usual = (away[known] / others[known]).quantile(self.config.usual)
                least = compute_lower_bound(strayed[row][mine], judged[row][mine])
                scores[client] = float((least - usual).max())
        return scores

    def _count_strays(
        self, rows: ByClient, labels: ByClient, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Count the samples, and the strays among them, by client and class.

        The number of strays is NaN if other clients have too few samples of the class.
        """
        own = {client: sum_by_class(rows[client], labels[client], classes) for client in rows}
        total = torch.stack([each[0] for each in own.values()]).sum(0)
        counted = torch.stack([each[1] for each in own.values()])
        others = counted.sum(0) - counted
        away = {}
        for row, client in enumerate(rows):
            centres = (total - own[client][0]) / others[row].clamp_min(1)[:, None]
            apart = torch.cdist(rows[client], centres)
            away[client] = apart.masked_fill(others[row] < self.config.fewest_others, math.inf)
        lengths = [_sort_own(away, labels, label) for label in range(classes)]
        counts = torch.full_like(counted, math.nan)
        for row, client in enumerate(rows):
            mine = away[client].gather(1, labels[client][:, None])[:, 0]
            nearest, where = away[client].min(1)
            reach = torch.stack([self._measure_reach(*each, row) for each in lengths])
            stray = (nearest < mine) & (nearest <= reach[where])
            strays = labels[client][stray].bincount(minlength=classes).double()
            known = others[row] >= self.config.fewest_others
            counts[row, known] = strays[known]
        return counted, counts

    def _measure_reach(self, distances: Tensor, owners: Tensor, judged: int) -> Tensor:
        """Return the distance to a class's centre that holds most of the others' samples of it."""
        known = distances[owners != judged]
        last = int(self.config.inside * (len(known) - 1))
        return known[last] if len(known) else distances.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """Return also the sums of the first rounds' scores."""
        totals = {
            f"found.{client}": torch.tensor([total, rounds], dtype=torch.float64)
            for client, (total, rounds) in self._first_rounds.items()
        }
        return {**super().state(), **totals}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._first_rounds = {
            int(client): (float(pair[0]), int(pair[1]))
            for client, pair in select_below(state, "found.").items()
        }


def _sort_own(away: ByClient, labels: ByClient, label: int) -> tuple[Tensor, Tensor]:
    """Return the sorted distances of a class's samples to the others' centre, and their owners."""
    own = [away[client][labels[client] == label, label] for client in away]
    owners = torch.arange(len(own)).repeat_interleave(torch.tensor([len(each) for each in own]))
    distances, order = torch.cat(own).sort()
    few = int(distances.isfinite().sum())  # infinite: others have too few samples for a centre
    return distances[:few], owners[order[:few]]


def compute_lower_bound(hits: Tensor, counts: Tensor) -> Tensor:
    """Return Wilson's lower bound of a share, `SURE` standard deviations below it."""
    share, square = hits / counts, SURE**2
    middle = share + square / (2 * counts)
    spread = SURE * (share * (1 - share) / counts + square / (4 * counts**2)).sqrt()
    return (middle - spread) / (1 + square / counts)
