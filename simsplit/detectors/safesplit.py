"""SafeSplit (Rieger et al., NDSS 2025): which of the last trunks are the work of the majority.

Clients take whole turns. After each, the last turn of every client is looked at twice. By its
change in the frequency domain (their Eq. 2, 3 and 8): the low frequencies of a 2-D discrete cosine
transform of what it changed in each layer, Euclidean distances. And by its rotation (their Eq. 4
to 6 and Appendix H): each weight is a point whose coordinates are the weight times its row's mean
and times its column's, theta is the point's angle from the x-axis, and RD is what a turn adds to
theta, over 2 pi; distances are sums of absolute differences. Either way a turn's score is the sum
of its smallest N / 2 + 1 distances, its own 0 among them as in their Algorithm 1 (their text says:
to other models), and the N / 2 + 1 smallest scores are the majority. Turns in both majorities are
benign; the trunk goes back to the newest of them if the last one is not.

The paper does not say how many frequencies are low, nor how a tensor becomes a matrix: a quarter,
an option here, and a row for each output channel. Its Eq. 9 and 10 scale the transform's first
frequency in a way that makes it no orthogonal one; it is orthonormal here.

By this rule at least N - N / 2 - 1 of N turns are outside at any time, 4 of 10, malicious or not:
it is a choice of what to go on from, and not a test with few false alarms. `threshold.above` over 1
is ours, not theirs: a turn may then be so many times as far as the majority's worst, which spares
most honest ones.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.detectors.base import (
    Detector,
    DetectorConfig,
    Response,
    Scores,
    Turn,
    View,
    distances,
)
from simsplit.detectors.thresholds import FixedConfig, Side
from simsplit.needs import Given, Need, Needs
from simsplit.packets import ClientId


class SafeSplitConfig(DetectorConfig):
    """SafeSplit: roll the trunk back to the newest turn that resembles the majority's."""

    kind: Literal["safesplit"] = "safesplit"
    low: float = Field(default=0.25, gt=0, le=1)
    """Share of each layer's frequencies that counts as low."""
    window: Literal[1] = 1
    """Turns are judged one by one."""
    threshold: FixedConfig = FixedConfig(above=1 + 1e-9)
    """How many times as far as the majority's worst a turn is outside; 1 is the published rule, by
    which about half of all turns are."""
    response: Response = "rollback"
    """rollback: after a flagged turn, go back to the newest benign trunk. none: only report it.
    skip, downweight: as for other detectors."""
    side: ClassVar[Side] = "high"
    by_turns: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Turns over a trunk that learns, of as many clients as have a majority."""
        return (Need(Given.TURNS), Need(Given.LEARNED_TRUNK), Need(Given.CLIENTS, least=3))

    def build(self) -> "SafeSplit":
        return SafeSplit(self)


Signature = tuple[Tensor, Tensor]
"""What a turn changed, in low frequencies, and how far it rotated each weight."""


class SafeSplit(Detector):
    """Scores are how far outside of a majority a turn is, by the worse look: above 1 is outside."""

    def __init__(self, config: SafeSplitConfig) -> None:
        super().__init__(config)
        self.low = config.low
        self.above = config.threshold.cut(0, config.side, 0)
        self._known: list[tuple[Turn, Signature]] = []

    def scores(self, view: View) -> Scores:
        """Of each client's last turn."""
        return self._of(view.turns)

    def _of(self, turns: Sequence[Turn]) -> Scores:
        if len(turns) < 3 or not turns[0].after:  # of a trunk that never learns, no turn is told
            return {}
        self._known = [(turn, self._signature(turn)) for turn in turns]
        changes, rotations = zip(*(signature for _, signature in self._known), strict=True)
        static = _excess(distances(torch.stack(changes)))
        turned = torch.stack(rotations)
        dynamic = _excess(torch.cdist(turned, turned, p=1).double())
        worse = torch.maximum(static, dynamic)
        return {turn.client: float(out) for turn, out in zip(turns, worse, strict=True)}

    def flagged(self, turns: Sequence[Turn]) -> set[ClientId]:
        """Whose last turn is outside of a majority, without taking note of it."""
        scores = self._of(turns)
        return {client for client, score in scores.items() if score > self.above}

    def _signature(self, turn: Turn) -> Signature:
        """Computed once a turn: its transform is what costs most."""
        for known, signature in self._known:
            if known is turn:
                return signature
        pairs = [(turn.before[name], after) for name, after in sorted(turn.after.items())]
        layers = [(_matrix(before), _matrix(after)) for before, after in pairs]
        changes = [_low_frequencies(after - before, self.low) for before, after in layers]
        rotations = [_angles(after) - _angles(before) for before, after in layers]
        return torch.cat(changes), torch.cat(rotations) / (2 * torch.pi)


def _matrix(layer: Tensor) -> Tensor:
    """A row for each output channel; a vector is a single row."""
    return layer[None].float() if layer.ndim < 2 else layer.flatten(1).float()


def _low_frequencies(change: Tensor, share: float) -> Tensor:
    """The corner of the 2-D transform that holds the share of lowest frequencies."""
    from scipy.fft import dctn

    rows, columns = change.shape
    side = share if rows == 1 else share**0.5
    kept = max(1, round(side * rows)), max(1, round(side * columns))
    transformed = torch.from_numpy(dctn(change.double().numpy(), norm="ortho"))
    return transformed[: kept[0], : kept[1]].flatten()


def _angles(layer: Tensor) -> Tensor:
    """Each weight's angle from the x-axis, by its row's and its column's mean."""
    x, y = layer.mean(1, keepdim=True) * layer, layer.mean(0, keepdim=True) * layer
    return torch.atan2(y, x).flatten()


def _excess(apart: Tensor) -> Tensor:
    """Each row's score over the worst in the majority: the half, and one, nearest to its half."""
    half = len(apart) // 2 + 1
    scores = apart.sort(1).values[:, :half].sum(1)
    worst = scores.sort().values[half - 1]
    return scores / worst.clamp_min(1e-300)
