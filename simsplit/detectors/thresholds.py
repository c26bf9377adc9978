"""This module decides which scores flag a client, independently of how scores are computed.

The usual cut is three robust standard deviations. With few clients this is not a 0.3 % test: the
median and the MAD of ten numbers are so uncertain that 2.8 % of honest clients exceed the cut, one
of ten in every fourth round. `calibrated` sets the cut that a given share of honest clients
exceeds, by simulating scores that are normal or have heavier tails. `sequential` does so for a
whole run that is judged after every round.

A client is judged by a window of rounds: the last, several, or all. A detector that compares means
compares means over the window; the scores of other detectors are averaged over it. Detectors can be
compared only at equal windows and thresholds.
"""

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Discriminator, Field
from torch import Tensor

from simsplit.config import Config
from simsplit.legs import ClientId
from simsplit.seeds import numpy_rng_for
from simsplit.states import select_below

_WORDS = {"round": 1, "running": None}
"""Values that earlier versions had instead of a number."""


def _replace_word(value: object) -> object:
    """Replace a word of earlier scenarios by its number of rounds."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


Rounds = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_replace_word)]
"""The field `window`: a number of rounds; null: all rounds so far."""


class Window:
    """Each client's mean over its latest rounds; `rounds` is the field `window`."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = None if rounds is None else max(1, rounds)
        self._totals: dict[ClientId, tuple[Tensor, int]] = {}
        """The sum and number of a client's rounds, for a window of all rounds."""
        self._latest: dict[ClientId, Tensor] = {}
        """A row for each of a client's latest rounds, for a window of several rounds."""

    def mean(self, values: Mapping[ClientId, Tensor]) -> dict[ClientId, Tensor]:
        """Add this round's values, and return the means of the clients that took part."""
        if self.rounds == 1:
            return dict(values)
        means = {}
        for client, value in values.items():
            if self.rounds is None:
                total, count = self._totals.get(client, (torch.zeros_like(value), 0))
                self._totals[client] = total + value, count + 1
                means[client] = (total + value) / (count + 1)
            else:
                known = self._latest.get(client, value[None][:0])
                self._latest[client] = torch.cat([known, value[None]])[-self.rounds :]
                means[client] = self._latest[client].mean(0)
        return means

    def state(self) -> dict[str, Tensor]:
        """Return what the window remembers between rounds, as tensors for a checkpoint."""
        state = {f"latest.{client}": rows for client, rows in self._latest.items()}
        for client, (total, count) in self._totals.items():
            state |= {f"total.{client}": total, f"rounds.{client}": torch.tensor(count)}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        totals = select_below(state, "total.")
        self._totals = {int(c): (total, int(state[f"rounds.{c}"])) for c, total in totals.items()}
        self._latest = {
            int(client): rows for client, rows in select_below(state, "latest.").items()
        }


def format_window(rounds: int | None) -> str:
    """Format a window for a table's cell."""
    if rounds is None:
        return "all rounds"
    return "round" if rounds <= 1 else f"{rounds} rounds"


Side = Literal["both", "high", "low"]
_DRAWS = 200_000
"""Smallest number of simulated scores."""
_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


class ThreeSigmaConfig(Config):
    """Clients are flagged if they are some robust standard deviations from the round's median."""

    kind: Literal["three_sigma"] = "three_sigma"
    sigmas: float = Field(default=3.0, gt=0)
    """Number of robust standard deviations from the median beyond which a client is flagged."""

    @property
    def description(self) -> str:
        """The threshold's name in tables."""
        return f"{self.sigmas:g} sigma"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        return self.sigmas


class CalibratedConfig(Config):
    """The threshold is simulated for a given false positive rate per round."""

    kind: Literal["calibrated"] = "calibrated"
    fpr: float = Field(default=0.01, gt=0, lt=0.5)
    """Share of honest clients that may be flagged in a round."""
    tails: float | None = Field(default=None, gt=0)
    """Degrees of freedom of the Student's t distribution that is assumed for honest scores: fewer
    mean heavier tails and a higher threshold; null: a normal distribution."""

    @property
    def description(self) -> str:
        """The threshold's name in tables."""
        tails = "" if self.tails is None else f", t({self.tails:g})"
        return f"calibrated {100 * self.fpr:g}%{tails}"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        """Return the simulated quantile for this number of clients."""
        return simulate_null_quantile(clients, side, self.fpr, self.tails)


class SequentialConfig(Config):
    """The z of clients is averaged over rounds; a flagged client stays flagged.

    The share of honest clients that a run may flag is divided among its rounds, most of it early.
    """

    kind: Literal["sequential"] = "sequential"
    fpr: float = Field(default=0.01, gt=0, lt=0.5)
    """Share of honest clients that may be flagged in a whole run."""

    @property
    def description(self) -> str:
        """The threshold's name in tables."""
        return f"sequential {100 * self.fpr:g}%"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        """Return the threshold after this number of rounds."""
        # 6 / (pi n)^2 sums to 1 over all n, so that all rounds together spend `fpr`
        spent = self.fpr * 6 / (math.pi * rounds) ** 2
        return simulate_null_quantile(clients, side, spent)


class FixedConfig(Config):
    """Clients are flagged above a fixed score, for scores with an absolute meaning."""

    kind: Literal["fixed"] = "fixed"
    above: float = 0.5
    """Score above which a client is flagged."""

    @property
    def description(self) -> str:
        """The threshold's name in tables."""
        return f"above {self.above:g}"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        return self.above


Threshold = Annotated[
    ThreeSigmaConfig | CalibratedConfig | SequentialConfig | FixedConfig, Discriminator("kind")
]
THRESHOLDS: dict[str, type[Config]] = {
    "fixed": FixedConfig,
    "three_sigma": ThreeSigmaConfig,
    "calibrated": CalibratedConfig,
    "sequential": SequentialConfig,
}


def compute_mad_z(scores: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Return each score's distance from the median, in robust standard deviations (MAD).

    If more than half of the scores are equal, the MAD is 0 and the mean absolute deviation replaces
    it; if all are equal, z is 0. `floor` is the smallest standard deviation that is assumed.
    """
    away = scores - np.median(scores, axis=-1, keepdims=True)
    size = _MAD * np.median(np.abs(away), axis=-1, keepdims=True)
    mean = 1.2533 * np.abs(away).mean(axis=-1, keepdims=True)  # sqrt(pi / 2), as _MAD for the mean
    size = np.where(size > 1e-12 * np.abs(scores).max(initial=1e-300), size, mean)
    size = np.maximum(size, floor)
    z: np.ndarray = np.divide(away, size, out=np.zeros_like(away), where=size > 0)
    return z


@functools.cache
def simulate_null_quantile(
    clients: int, side: Side, share: float, tails: float | None = None
) -> float:
    """Simulate the value that a share of the MAD z of `clients` honest scores exceeds.

    Scores are independent draws of a normal distribution, or of a Student's t with `tails` degrees
    of freedom.
    """
    if clients < 3:
        return math.inf
    rng = numpy_rng_for(0, "detectors", "null", clients)
    draws = max(_DRAWS, math.ceil(20 / share)) // clients + 1
    size = (min(draws, 400_000), clients)
    z = compute_mad_z(rng.standard_normal(size) if tails is None else rng.standard_t(tails, size))
    values = np.abs(z) if side == "both" else z
    return float(np.quantile(values, 1 - share))


def to_suspicion(z: np.ndarray, side: Side) -> np.ndarray:
    """Turn values into suspicion: larger is more suspicious, whichever side is suspicious."""
    ways: dict[Side, np.ndarray] = {"both": np.abs(z), "high": z, "low": -z}
    return ways[side]
