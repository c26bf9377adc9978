"""This module implements SafeSplit (Rieger et al., NDSS 2025): the trunk returns to a benign turn.

Clients take whole turns. After each turn, the last turn of every client is analysed in two ways:

- In the frequency domain (Eq. 2, 3 and 8): the low frequencies of a 2-D discrete cosine transform
  of the change of each layer, with Euclidean distances.
- By rotation (Eq. 4 to 6 and Appendix H): each weight is a point with two coordinates, the weight
  times its row's mean and the weight times its column's mean. Theta is the point's angle from the
  x-axis, and RD is the change of theta in a turn, over 2 pi. Distances are sums of absolute
  differences.

In both analyses a turn's score is the sum of its N / 2 + 1 smallest distances, including its own 0
as in Algorithm 1 (the paper's text excludes it), and the N / 2 + 1 turns with the smallest scores
are the majority. Turns in both majorities are benign. If the last turn is not, the trunk returns to
the newest benign one.

The paper leaves open how many frequencies are low and how a tensor becomes a matrix. Here a quarter
of them are low (an option), and a matrix has a row for each output channel. The paper's Eq. 9 and
10 scale the transform's first frequency so that it is not orthogonal; here it is orthonormal.

By this rule at least N - N / 2 - 1 of N turns are outside at any time, 4 of 10, malicious or not:
it chooses a trunk to continue from, and is not a test with few false alarms. `threshold.above`
greater than 1 is ours: a turn is then outside only if its score is more than so many times the
largest score of the majority, which spares most honest turns.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.detector import (
    Detector,
    DetectorConfig,
    Response,
    RoundView,
    Scores,
    TrunkTurn,
    measure_distances,
)
from simsplit.detectors.thresholds import FixedConfig
from simsplit.legs import ClientId
from simsplit.needs import Given, Need, Needs


class SafeSplitConfig(DetectorConfig):
    """Roll-back of the trunk to the newest turn that resembles the majority's (SafeSplit)."""

    kind: Literal["safesplit"] = "safesplit"
    low: float = Field(default=0.25, gt=0, le=1)
    """Share of each layer's frequencies that counts as low."""
    window: Literal[1] = 1
    """Number of rounds over which a client is averaged: always 1, since turns are judged singly."""
    threshold: FixedConfig = FixedConfig(above=1 + 1e-9)
    """Threshold of a turn's score, in units of the largest score of the majority. 1 is the
    published rule, by which about half of all turns are flagged."""
    response: Response = "rollback"
    """What happens after a flagged turn: `rollback` returns to the newest benign trunk, `none` only
    reports the turn; `skip` and `downweight` act as for other detectors."""
    side = "high"
    by_turns = True

    @property
    def needs(self) -> Needs:
        """Turns over a trunk that learns, of three clients or more, which have a majority."""
        return (Need(Given.TURNS), Need(Given.LEARNED_TRUNK), Need(Given.CLIENTS, least=3))

    def build(self) -> "SafeSplit":
        return SafeSplit(self)


Signature = tuple[Tensor, Tensor]
"""The low frequencies of a turn's changes, and the rotation of each weight."""


class SafeSplit(Detector):
    """A detector of turns outside of a majority; the larger score of both analyses counts."""

    def __init__(self, config: SafeSplitConfig) -> None:
        super().__init__(config)
        self.low = config.low
        self.above = config.threshold.cut(0, config.side, 0)
        self._known: list[tuple[TrunkTurn, Signature]] = []

    def score(self, view: RoundView) -> Scores:
        """Score each client's last turn."""
        return self._score(view.turns)

    def _score(self, turns: Sequence[TrunkTurn]) -> Scores:
        # Turns of a trunk that never learns have no weights.
        if len(turns) < 3 or not turns[0].after:
            return {}
        self._known = [(turn, self._get_signature(turn)) for turn in turns]
        changes, rotations = zip(*(signature for _, signature in self._known), strict=True)
        static = _measure_excess(measure_distances(torch.stack(changes)))
        turned = torch.stack(rotations)
        dynamic = _measure_excess(torch.cdist(turned, turned, p=1).double())
        worse = torch.maximum(static, dynamic)
        return {turn.client: float(out) for turn, out in zip(turns, worse, strict=True)}

    def find_flagged(self, turns: Sequence[TrunkTurn]) -> set[ClientId]:
        """Return the clients whose last turn is outside of a majority, without recording it."""
        scores = self._score(turns)
        return {client for client, score in scores.items() if score > self.above}

    def _get_signature(self, turn: TrunkTurn) -> Signature:
        """Return a turn's signature, computed once: the transform takes most of the time."""
        for known, signature in self._known:
            if known is turn:
                return signature
        pairs = [(turn.before[name], after) for name, after in sorted(turn.after.items())]
        layers = [(_to_matrix(before), _to_matrix(after)) for before, after in pairs]
        changes = [_transform(after - before, self.low) for before, after in layers]
        rotations = [_measure_angles(after) - _measure_angles(before) for before, after in layers]
        return torch.cat(changes), torch.cat(rotations) / (2 * torch.pi)


def _to_matrix(layer: Tensor) -> Tensor:
    """Return a layer as a matrix with a row for each output channel; a vector is a single row."""
    return layer[None].float() if layer.ndim < 2 else layer.flatten(1).float()


def _transform(change: Tensor, share: float) -> Tensor:
    """Return the corner of the 2-D transform that has the share of lowest frequencies."""
    from scipy.fft import dctn

    rows, columns = change.shape
    side = share if rows == 1 else share**0.5
    kept = max(1, round(side * rows)), max(1, round(side * columns))
    transformed = torch.from_numpy(dctn(change.double().numpy(), norm="ortho"))
    return transformed[: kept[0], : kept[1]].flatten()


def _measure_angles(layer: Tensor) -> Tensor:
    """Return each weight's angle from the x-axis, by its row's and its column's mean."""
    x, y = layer.mean(1, keepdim=True) * layer, layer.mean(0, keepdim=True) * layer
    return torch.atan2(y, x).flatten()


def _measure_excess(apart: Tensor) -> Tensor:
    """Return each row's score, relative to the largest score of the majority (Algorithm 1)."""
    half = len(apart) // 2 + 1
    scores = apart.sort(1).values[:, :half].sum(1)
    worst = scores.sort().values[half - 1]
    # identical turns are 0 apart: their scores are 0, not NaN
    return scores / worst.clamp_min(1e-300)
