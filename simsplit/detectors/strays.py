"""This module counts strays: samples that look like another class of other clients.

No client must be trusted, and a client with a class of its own is compared with all classes of
others.

    white   top directions of the covariance within clients' classes, each over its deviation
    centre  a class's mean over all clients except the judged one
    stray   a sample that is nearer to another class's centre than to its own class's, and not
            farther from it than most of that class's own samples
    usual   the share of strays among all other clients' samples of most classes

If classes overlap, many samples of honest clients are strays, and the usual share is high too.

A client that sends much larger messages than others would move the centres and the directions, so
that honest samples stray. So nobody is compared with a client whose messages have other norms than
usual (`OFF`). It is judged itself: at the usual norm if that brings its samples' spread nearer to
the usual one too, since a factor changes both. To scale messages alone is no mislabelling. A shift
changes the norms alone, and at the usual norm shifted samples would all look alike.
"""

import math
from abc import ABC
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

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
from simsplit.detectors.detector import Detector, RoundView
from simsplit.legs import ClientId

OFF = 1.25
"""Factor between a client's median norm and the usual one from which nobody is compared with it.
Median norms of honest clients' payloads differ by at most 12 % in the first round of digits, with
10 to 50 clients and any skew."""
SURE = 3.0
"""Number of standard deviations by which the lower bound of a share is below the share."""


class StraysConfig(ByClassConfig, ABC):
    """The base of detectors that count samples that look like another class of other clients."""

    signal: Literal["payload", "features"] = "payload"
    """Signal that is compared: `payload`, smashed data as sent, or `features`, the trunk's outputs.
    Gradients are not allowed: classes are inferred from them, so no sample would look like another
    class."""
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


class Compared(NamedTuple):
    """One client's samples beside the others', by class."""

    counts: Tensor
    """Number of samples; 0 for a class in which the client cannot be compared."""
    strays: Tensor
    usual: Tensor
    """Share of strays that is usual among others."""

    def score(self, strays: Tensor, early: Tensor) -> float:
        """Return the largest excess over classes of a share of strays over an early share."""
        mine = self.counts > 0
        least = compute_lower_bound(strays[mine], self.counts[mine])
        return float((least - early.maximum(self.usual)[mine]).max())


class StraysDetector(Detector, ABC):
    """Base class of detectors that count clients' strays."""

    config: StraysConfig

    def compare_clients(
        self, view: RoundView, left_out: Collection[ClientId] = ()
    ) -> dict[ClientId, Compared]:
        """Compare by this round's samples the clients with a class that others have too.

        Nobody is compared with clients of `left_out`, nor with clients whose norms are off; they
        themselves are compared.
        """
        labels, classes = infer_classes(view, self.config.classes)
        rows = {c: x.double() for c, x in select_samples(view, self.config.signal, labels).items()}
        factors = _find_factors(rows)
        rows = {client: x * factors.get(client, 1.0) for client, x in rows.items()}
        peers = {c: x for c, x in rows.items() if c not in left_out and c not in factors}
        white = compute_whitening(peers, labels, classes, self.config.directions) if peers else None
        if white is None:
            return {}
        is_peer = torch.tensor([client in peers for client in rows]).double()[:, None]
        counts, strays = self._count_strays(
            {c: x @ white for c, x in rows.items()}, labels, classes, is_peer
        )
        is_judged = ~strays.isnan()
        judged, strayed = counts * is_judged, strays.nan_to_num()
        compared = {}
        for row, client in enumerate(rows):
            others = (judged * is_peer).sum(0) - judged[row] * is_peer[row]
            away = (strayed * is_peer).sum(0) - strayed[row] * is_peer[row]
            mine, known = judged[row] > 0, others >= self.config.fewest_others
            if mine.any() and known.any():
                usual = (away[known] / others[known]).quantile(self.config.usual)
                compared[client] = Compared(judged[row], strayed[row], usual)
        return compared

    def _count_strays(
        self, rows: ByClient, labels: ByClient, classes: int, is_peer: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Count the samples, and the strays among them, by client and class.

        The number of strays is NaN if other clients have too few samples of the class.
        """
        own = {client: sum_by_class(rows[client], labels[client], classes) for client in rows}
        sums = torch.stack([each[0] for each in own.values()])
        counted = torch.stack([each[1] for each in own.values()])
        others = (counted * is_peer).sum(0) - counted * is_peer
        total = (sums * is_peer[:, :, None]).sum(0)
        away = {}
        for row, client in enumerate(rows):
            centres = (total - sums[row] * is_peer[row]) / others[row].clamp_min(1)[:, None]
            apart = torch.cdist(rows[client], centres)
            away[client] = apart.masked_fill(others[row] < self.config.fewest_others, math.inf)
        lengths = [_sort_own(away, labels, label, is_peer) for label in range(classes)]
        counts = torch.full_like(counted, math.nan)
        for row, client in enumerate(rows):
            mine = away[client].gather(1, labels[client][:, None])[:, 0]
            nearest, where = away[client].min(1)
            # The distance to each class's centre that holds most of the others' samples of it.
            reach = torch.zeros(classes, dtype=nearest.dtype)
            for label, (distances, owners) in enumerate(lengths):
                if len(known := distances[owners != row]):
                    reach[label] = known[int(self.config.inside * (len(known) - 1))]
            stray = (nearest < mine) & (nearest <= reach[where])
            strays = labels[client][stray].bincount(minlength=classes).double()
            enough = others[row] >= self.config.fewest_others
            counts[row, enough] = strays[enough]
        return counted, counts


def _find_factors(rows: ByClient) -> dict[ClientId, float]:
    """Return the factors on clients whose norms are off, which bring who scales to the usual norm.

    A client's norm and spread are medians over its samples, of their distances from 0 and from
    their mean; the usual ones are medians over clients.
    """
    if not rows:
        return {}
    away = _compare_sizes([*rows.values()])
    spread = _compare_sizes([x - x.mean(0) for x in rows.values()])
    is_scaled = (spread - away).abs() < spread.abs()
    factors = torch.where(is_scaled, -away, 0).exp()
    # not a number: a client that sends none has no usual norm either
    off = ~(away.abs() < math.log(OFF))
    return {
        client: float(f) for client, f, is_off in zip(rows, factors, off, strict=True) if is_off
    }


def _compare_sizes(rows: Sequence[Tensor]) -> Tensor:
    """Return the logarithms of the clients' median lengths of rows over the median of these."""
    sizes = torch.stack([x.norm(dim=1).quantile(0.5) for x in rows]).log()
    return sizes - sizes.quantile(0.5)


def _sort_own(
    away: ByClient, labels: ByClient, label: int, is_peer: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sorted distances of peers' samples of a class to its centre, and their owners."""
    own = [
        away[client][(labels[client] == label) & is_peer[row].bool(), label]
        for row, client in enumerate(away)
    ]
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
