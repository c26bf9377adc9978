"""Samples whose class is not what they look like, as other clients have it: in none of the papers.

A backdoor relabels. Until heads have learned the trigger, a relabelled sample still looks like the
class that it was taken from, and other clients show what that class looks like. So nobody need be
trusted, a client with a class of its own is compared with all others' classes, and attackers may
be many, as long as they do not hold most of the classes that they take samples from.

    white   top directions of the covariance within clients' classes, each over its deviation
    centre  a class's mean over all clients but the one that is judged
    stray   a sample nearer another class's centre than its own class's, and no farther from it
            than all but a few of that class's own samples are
    score   the largest over classes of the share of strays, taken as low as chance allows, less
            the share that is usual in other clients' samples of most classes

Scores have an absolute meaning: honest clients' lie about zero or below, also where classes
overlap, since the usual share is high there. A head learns the trigger within a few rounds, which
hides the strays; so a client is judged by the first rounds in which it takes part. Who starts to
poison later is not found; `within_class` looks at later rounds too.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.base import Detector, Scores, View
from simsplit.detectors.by_class import (
    ByClassConfig,
    Samples,
    compared,
    labelled,
    sums,
    whitened,
)
from simsplit.detectors.thresholds import FixedConfig, Side, Threshold
from simsplit.detectors.windows import Rounds
from simsplit.packets import ClientId
from simsplit.states import below

SURE = 3.0
"""By how many standard deviations chance may have raised a share."""


class MislabelledConfig(ByClassConfig):
    """Share of a client's samples of a class that look like another class of other clients."""

    kind: Literal["mislabelled"] = "mislabelled"
    signal: Literal["payload", "features"] = "payload"
    """What is compared: smashed data as sent (payload), or the trunk's outputs (features). Not the
    gradients: classes are inferred from them, so no sample would look like another class."""
    window: Rounds = 1
    """Over how many of a client's first rounds its score is averaged; later rounds leave it as it
    is. null: all rounds."""
    directions: int = Field(default=32, ge=1)
    """Directions in which samples are compared, those of the largest variance."""
    inside: float = Field(default=0.95, gt=0, lt=1)
    """How far from a class's centre a sample may lie and still look like it: as far as this share
    of the class's own samples."""
    usual: float = Field(default=0.8, gt=0, lt=1)
    """Which quantile of classes' shares, all other clients together, counts as usual."""
    fewest_others: int = Field(default=12, ge=2)
    """A class of which other clients have fewer samples is not judged; nothing looks like it."""
    threshold: Threshold = FixedConfig(above=0.1)
    """Which scores flag a client; scores have an absolute meaning."""
    side: ClassVar[Side] = "high"

    def build(self) -> "Mislabelled":
        return Mislabelled(self)


class Mislabelled(Detector):
    """Scores clients by how many more samples of a class of theirs stray than is usual."""

    def __init__(self, config: MislabelledConfig) -> None:
        super().__init__(config)
        self.options = config
        self._found: dict[ClientId, tuple[float, int]] = {}
        """By client, the sum of its first rounds' scores, and how many they are."""

    def scores(self, view: View) -> Scores:
        """Mean scores over their first rounds of the clients that could be compared."""
        if self._looks_again(view):
            for client, score in self._round(view).items():
                self._remember(client, score)
        seen = sorted(view.readings.samples)
        known = {client: self._found[client] for client in seen if client in self._found}
        return {client: total / rounds for client, (total, rounds) in known.items()}

    def pooled(self, view: View) -> Scores:
        """The scores as they are: they are averaged already."""
        return self.scores(view)

    def _looks_again(self, view: View) -> bool:
        """Whether anybody is there whose first rounds are not over."""
        return any(self._open(client) for client in view.readings.samples)

    def _open(self, client: ClientId) -> bool:
        window = self.options.window
        rounds = self._found.get(client, (0.0, 0))[1]
        return window is None or rounds < max(1, window)

    def _remember(self, client: ClientId, score: float) -> None:
        if self._open(client):
            total, rounds = self._found.get(client, (0.0, 0))
            self._found[client] = total + score, rounds + 1

    def _round(self, view: View) -> Scores:
        """Scores by this round's samples, of clients with a class that others have too."""
        labels, classes = labelled(view, self.options.classes)
        rows = {c: x.double() for c, x in compared(view, self.options.signal, labels).items()}
        white = whitened(rows, labels, classes, self.options.directions) if labels else None
        if white is None:
            return {}
        counts, strays = self._strays({c: x @ white for c, x in rows.items()}, labels, classes)
        judged = ~strays.isnan()
        held, strayed = counts * judged, strays.nan_to_num()
        found = {}
        for row, client in enumerate(rows):
            others, away = held.sum(0) - held[row], strayed.sum(0) - strayed[row]
            mine, known = held[row] > 0, others >= self.options.fewest_others
            if mine.any() and known.any():
                usual = (away[known] / others[known]).quantile(self.options.usual)
                least = lower_bound(strayed[row][mine], held[row][mine])
                found[client] = float((least - usual).max())
        return found

    def _strays(self, rows: Samples, labels: Samples, classes: int) -> tuple[Tensor, Tensor]:
        """By client and class, how many samples there are, and how many of them stray.

        Not a number where other clients have too few samples of the class.
        """
        own = {client: sums(rows[client], labels[client], classes) for client in rows}
        total = torch.stack([each[0] for each in own.values()]).sum(0)
        counted = torch.stack([each[1] for each in own.values()])
        others = counted.sum(0) - counted
        away = {}
        for row, client in enumerate(rows):
            centres = (total - own[client][0]) / others[row].clamp_min(1)[:, None]
            apart = torch.cdist(rows[client], centres)
            away[client] = apart.masked_fill(others[row] < self.options.fewest_others, math.inf)
        lengths = [_sorted_own(away, labels, label) for label in range(classes)]
        found = torch.full_like(counted, math.nan)
        for row, client in enumerate(rows):
            mine = away[client].gather(1, labels[client][:, None])[:, 0]
            nearest, where = away[client].min(1)
            reach = torch.stack([self._reach(*each, row) for each in lengths])
            stray = (nearest < mine) & (nearest <= reach[where])
            strays = labels[client][stray].bincount(minlength=classes).double()
            known = others[row] >= self.options.fewest_others
            found[row, known] = strays[known]
        return counted, found

    def _reach(self, distances: Tensor, owners: Tensor, judged: int) -> Tensor:
        """How far most of a class's samples lie from its centre, but for those of the judged."""
        known = distances[owners != judged]
        last = int(self.options.inside * (len(known) - 1))
        return known[last] if len(known) else distances.new_zeros(())

    def state(self) -> dict[str, Tensor]:
        """The sums of the first rounds' scores."""
        held = {
            f"found.{client}": torch.tensor([total, rounds], dtype=torch.float64)
            for client, (total, rounds) in self._found.items()
        }
        return {**super().state(), **held}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        super().load(state)
        self._found = {
            int(client): (float(pair[0]), int(pair[1]))
            for client, pair in below(state, "found.").items()
        }


def _sorted_own(away: Samples, labels: Samples, label: int) -> tuple[Tensor, Tensor]:
    """Distances of a class's samples to their centre as others have it, and whose they are."""
    own = [away[client][labels[client] == label, label] for client in away]
    owners = torch.arange(len(own)).repeat_interleave(torch.tensor([len(each) for each in own]))
    distances, order = torch.cat(own).sort()
    few = int(distances.isfinite().sum())  # the others' centre, of too few samples, is none
    return distances[:few], owners[order[:few]]


def lower_bound(hits: Tensor, counts: Tensor) -> Tensor:
    """Wilson's lower bound of a share, `SURE` standard deviations down."""
    share, square = hits / counts, SURE**2
    middle = share + square / (2 * counts)
    spread = SURE * (share * (1 - share) / counts + square / (4 * counts**2)).sqrt()
    return (middle - spread) / (1 + square / counts)
