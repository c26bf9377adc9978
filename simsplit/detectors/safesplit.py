"""SafeSplit (Rieger et al., NDSS 2025): which of the last trunks are the work of the majority.

Clients take whole turns. After each, the last turn of every client is looked at twice: by the low
frequencies of what it changed in the trunk (a discrete cosine transform, layer by layer), and by
how far it rotated each layer's weights. Either way a turn's score is the sum of its distances to
the nearest half of the others, and the better half of the scores is the majority. Turns in both
majorities are taken for benign; the trunk goes back to the newest of them if the last one is not.

The paper says which components it compares but not how many: the lowest quarter, an option here.
Its distances are Euclidean here, and rotations are the angles between a layer's weights before and
after.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
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
    threshold: FixedConfig = FixedConfig(above=1 + 1e-9)
    """Above which score a turn is outside of the majority."""
    response: Response = "rollback"
    """rollback: after a flagged turn, go back to the newest benign trunk. none: only report it.
    skip, downweight: as for other detectors."""
    side: ClassVar[Side] = "high"
    by_turns: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Turns, of as many clients as have a majority."""
        return (Need(Given.TURNS), Need(Given.CLIENTS, least=3))

    def build(self) -> "SafeSplit":
        return SafeSplit(self)


class SafeSplit(Detector):
    """Scores are how far outside of a majority a turn is, by the worse look: above 1 is outside."""

    def __init__(self, config: SafeSplitConfig) -> None:
        super().__init__(config)
        self.low = config.low
        self.above = config.threshold.cut(0, config.side, 0)

    def scores(self, view: View) -> Scores:
        """Of each client's last turn."""
        return self._of(view.turns)

    def _of(self, turns: Sequence[Turn]) -> Scores:
        if len(turns) < 3 or not turns[0].after:  # of a trunk that never learns, no turn is told
            return {}
        looks = (self._frequencies(turns), _rotations(turns))
        worse = torch.maximum(*map(_excess, looks))
        return {turn.client: float(out) for turn, out in zip(turns, worse, strict=True)}

    def flagged(self, turns: Sequence[Turn]) -> set[ClientId]:
        """Whose last turn is outside of a majority, without taking note of it."""
        scores = self._of(turns)
        return {client for client, score in scores.items() if score > self.above}

    def _frequencies(self, turns: Sequence[Turn]) -> Tensor:
        """The low ones of each turn's change, a row a turn."""
        from scipy.fft import dct

        rows = []
        for turn in turns:
            parts = []
            for name, after in sorted(turn.after.items()):
                change = (after - turn.before[name]).flatten().double().numpy()
                kept = max(1, round(self.low * len(change)))
                parts.append(dct(change, norm="ortho")[:kept])
            rows.append(torch.tensor(np.concatenate(parts)))
        return torch.stack(rows)


def _rotations(turns: Sequence[Turn]) -> Tensor:
    """The angle by which each layer turned, a row a turn."""
    rows = []
    for turn in turns:
        pairs = [(turn.before[name], after) for name, after in sorted(turn.after.items())]
        rows.append(torch.stack([_angle(a.flatten(), b.flatten()) for a, b in pairs if len(a) > 1]))
    return torch.stack(rows)


def _angle(one: Tensor, other: Tensor) -> Tensor:
    """Between two vectors; by way of sines, as a cosine near one says nothing of a small angle."""
    one, other = (torch.nn.functional.normalize(v.double(), dim=0) for v in (one, other))
    return 2 * torch.atan2((one - other).norm(), (one + other).norm())


def _excess(rows: Tensor) -> Tensor:
    """Each row's score over the worst in the majority: the half, and one, nearest to its half."""
    half = len(rows) // 2 + 1
    scores = distances(rows).sort(1).values[:, :half].sum(1)  # its own, which is 0, among them
    worst = scores.sort().values[half - 1]
    return scores / worst.clamp_min(1e-300)
