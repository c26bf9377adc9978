"""Clients against a trusted one within each class, which the server infers: in none of the papers.

Where labels are skewed a class is held by one or two clients, and they have nobody to be compared
with but a root client: the server's own, with a few clean samples of every class, which trains
along. A whole client's payloads also drift with its head and its turn, whatever its samples are; so
what differs in one class is held against what differs in the client's other classes.

    white = top directions of the covariance within clients' classes, each over sqrt(its variance)
    d1 = client's mean of a class - root's;           h1 = 1/n + 1/n_root
    d2 = d1 - weighted mean of d1 over other classes; h2 = h1 + sum of w^2 v
    effect(d, h) = 10/p ( |d|^2 - p h - 3 sqrt(2 p) h ):  a lower bound of the squared difference
    a class's score is the lesser of effect(d1, h1) and effect(d2, h2)

A client's score is the largest over classes of the mean over rounds, and has an absolute meaning:
honest clients' lie below zero. Classes are numbered anew in every round, and so are matched to the
round's before by the gradients that they were inferred from.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.detectors.base import Detector, Scores, View
from simsplit.detectors.by_class import (
    LEAST_GROUP,
    ByClassConfig,
    Samples,
    compared,
    labelled,
    sums,
    told,
    whitened,
)
from simsplit.detectors.thresholds import FixedConfig, Side, Threshold
from simsplit.detectors.windows import Rounds
from simsplit.packets import ClientId
from simsplit.states import below

LEAST_ELSE = 2
"""Samples of a client's other class in a contrast, at least; `LEAST_GROUP` of the root's."""


class RootClassConfig(ByClassConfig):
    """Distance of each client's samples from a trusted client's of the same inferred class."""

    kind: Literal["root_class"] = "root_class"
    root: tuple[ClientId, ...] = Field(default=(0,), min_length=1)
    """Trusted clients; malicious ones are drawn among the others."""
    signal: Literal["payload"] = "payload"
    """What is compared: smashed data as sent. The trunk's outputs drift with each client's turn."""
    window: Rounds = None
    """Over how many of the latest rounds a class is averaged; 0 or 1: the round alone; null: all
    rounds so far."""
    since: int = Field(default=4, ge=1)
    """The first round that counts; before it payloads say little."""
    directions: int = Field(default=32, ge=1)
    """Directions in which samples are compared, those of the largest variance."""
    fewest: int = Field(default=20, ge=2)
    """Clients with fewer samples of a class in a round are not judged by it."""
    fewest_root: int = Field(default=8, ge=2)
    """Classes of which the root has fewer samples in a round are not judged."""
    threshold: Threshold = FixedConfig(above=0.3)
    """Which scores flag a client; scores have an absolute meaning."""
    side: ClassVar[Side] = "high"

    @property
    def trusted(self) -> tuple[ClientId, ...]:
        """The clients of `root`."""
        return self.root

    @property
    def fewest_trusted(self) -> int:
        """A field of its own."""
        return self.fewest_root

    @property
    def title(self) -> str:
        """Its name, or its kind: it reads one signal only."""
        return self.name or "root_class"

    def build(self) -> "RootClass":
        return RootClass(self)


class RootClass(Detector):
    """Scores clients by the largest difference that a class of theirs has from the root's."""

    def __init__(self, config: RootClassConfig) -> None:
        super().__init__(config)
        self.options = config
        self._centres: Tensor | None = None
        """Of the last round's classes, the gradients' mean direction."""
        self._effects: dict[ClientId, Tensor] = {}
        """By client, a row a round and a column a class; not a number where it is not judged."""

    def scores(self, view: View) -> Scores:
        """Scores of the clients that can be compared in some class, over the window."""
        labels, classes = self._labels(view)
        if view.round >= self.options.since and set(labels) & set(self.options.root):
            rows = {c: x.double() for c, x in compared(view, self.options.signal, labels).items()}
            for client, effects in self._compared(rows, labels, classes).items():
                self._remember(client, effects)
        found = {client: self._largest(client) for client in labels if client in self._effects}
        return {client: score for client, score in found.items() if score is not None}

    def pooled(self, view: View) -> Scores:
        """The scores as they are: it is a class's score that is averaged."""
        return self.scores(view)

    def _labels(self, view: View) -> tuple[Samples, int]:
        """Samples' classes, numbered as in the round before, and how many classes there are."""
        labels, classes = labelled(view, self.options.classes)
        if not labels or told(view):
            return labels, classes  # they mean the same in every round
        grads = torch.cat(list(compared(view, "features_grad", labels).values()))
        centres = _means(normalize(grads.double()), torch.cat(list(labels.values())), classes)
        order = torch.arange(classes)
        if self._centres is not None and self._centres.shape == centres.shape:
            order = _matched(centres, self._centres)
        self._centres = torch.empty_like(centres)
        self._centres[order] = centres
        return {client: order[each] for client, each in labels.items()}, classes

    def _compared(self, rows: Samples, labels: Samples, classes: int) -> dict[ClientId, Tensor]:
        """Each client's effects of the round, by class."""
        white = whitened(rows, labels, classes, self.options.directions)
        if white is None:
            return {}
        stats = {
            client: _by_class(rows[client] @ white, labels[client], classes) for client in rows
        }
        root = [client for client in rows if client in self.options.root]
        together = [torch.cat([each[client] for client in root]) for each in (rows, labels)]
        base = _by_class(together[0] @ white, together[1], classes)
        others = [client for client in rows if client not in self.options.root]
        return {client: self._effects_of(stats[client], base) for client in others}

    def _effects_of(self, mine: "Classes", root: "Classes") -> Tensor:
        """By class, by how much a client's mean differs from the root's, beyond chance."""
        (means, counts), (root_means, root_counts) = mine, root
        apart = means - root_means
        chance = 1 / counts.clamp_min(1) + 1 / root_counts.clamp_min(1)
        elsewhere = (counts >= LEAST_ELSE) & (root_counts >= LEAST_GROUP)
        effects = torch.full((len(counts),), math.nan, dtype=torch.float64)
        for label in range(len(counts)):
            if counts[label] < self.options.fewest or root_counts[label] < self.options.fewest_root:
                continue
            effect = _effect(apart[label], chance[label])
            others = elsewhere.clone()
            others[label] = False
            if others.any():
                weights = (1 / chance[others]) / (1 / chance[others]).sum()
                contrast = apart[label] - weights @ apart[others]
                spread = chance[label] + (weights.square() * chance[others]).sum()
                effect = min(effect, _effect(contrast, spread))
            effects[label] = effect
        return effects

    def _remember(self, client: ClientId, effects: Tensor) -> None:
        known = self._effects.get(client, effects.new_empty(0, len(effects)))
        rows = torch.cat([known, effects[None]])
        window = self.options.window
        self._effects[client] = rows if window is None else rows[-max(1, window) :]

    def _largest(self, client: ClientId) -> float | None:
        """Of the means over rounds; a class that was judged once says nothing yet."""
        rows, window = self._effects[client], self.options.window
        judged = (~rows.isnan()).sum(0)
        enough = judged >= (1 if window is not None and window <= 1 else 2)
        return float(rows.nanmean(0)[enough].max()) if enough.any() else None

    def state(self) -> dict[str, Tensor]:
        """The rounds' effects, and the classes' gradients."""
        centres = {} if self._centres is None else {"centres": self._centres}
        held = {f"effects.{client}": rows for client, rows in self._effects.items()}
        return {**super().state(), **centres, **held}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        super().load(state)
        self._centres = state.get("centres")
        self._effects = {int(client): rows for client, rows in below(state, "effects.").items()}


Classes = tuple[Tensor, Tensor]
"""By class, the mean of its rows, and how many there are."""


def _means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    return _by_class(rows, labels, classes)[0]


def _by_class(rows: Tensor, labels: Tensor, classes: int) -> Classes:
    total, counts = sums(rows, labels, classes)
    return total / counts.clamp_min(1)[:, None], counts


def _effect(apart: Tensor, chance: Tensor) -> float:
    """A lower bound of the squared difference of two means, per direction and tenfold."""
    size = len(apart)
    beyond = apart.square().sum() - (size + 3 * math.sqrt(2 * size)) * chance
    return float(10 * beyond / size)


def _matched(centres: Tensor, before: Tensor) -> Tensor:
    """The number that each class had in the round before."""
    from scipy.optimize import linear_sum_assignment

    alike = normalize(centres) @ normalize(before).T
    _, columns = linear_sum_assignment(-alike.numpy())
    return torch.from_numpy(columns)
