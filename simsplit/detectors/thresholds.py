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
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field

from simsplit.config import Config
from simsplit.seeds import numpy_rng_for

_WORDS = {"round": 1, "running": None}
"""Values that earlier versions had instead of a number."""


def _replace_word(value: object) -> object:
    """Replace a word of earlier scenarios by its number of rounds."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


Rounds = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_replace_word)]
"""The field `window`: a number of rounds; null: all rounds so far."""


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
