"""From scores to verdicts: how far from the others is too far. A policy, apart from the score.

The customary cut is three robust standard deviations. Over few clients that is no 0.3 % test: the
median and the MAD of ten numbers are themselves so uncertain that 2.8 % of honest clients cross it,
one of ten in every fourth round. `calibrated` puts the cut where honest clients would cross it as
often as one says, in a simulation of scores that are normal or have heavier tails; `sequential`
does so for a whole run, looked at after every round.
"""

import functools
import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Discriminator, Field

from simsplit.config import Config
from simsplit.seeds import numpy_rng_for

Side = Literal["both", "high", "low"]
_DRAWS = 200_000
_MAD = 1.4826
"""A normal's standard deviation over its median absolute deviation."""


class ThreeSigmaConfig(Config):
    """Flag clients several robust standard deviations from the round's median."""

    kind: Literal["three_sigma"] = "three_sigma"
    sigmas: float = Field(default=3.0, gt=0)
    """How many robust standard deviations."""

    @property
    def said(self) -> str:
        """How tables name it."""
        return f"{self.sigmas:g} sigma"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        del clients, side, rounds
        return self.sigmas


class CalibratedConfig(Config):
    """Set the threshold by simulation, for a given false positive rate per round."""

    kind: Literal["calibrated"] = "calibrated"
    fpr: float = Field(default=0.01, gt=0, lt=0.5)
    """The share of honest clients that may be flagged in a round."""
    tails: float | None = Field(default=None, gt=0)
    """Degrees of freedom of the Student's t by which honest scores are taken to vary: the fewer,
    the heavier its tails, and the higher the threshold; null: a normal."""

    @property
    def said(self) -> str:
        """How tables name it."""
        tails = "" if self.tails is None else f", t({self.tails:g})"
        return f"calibrated {100 * self.fpr:g}%{tails}"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        """The simulated quantile for this number of clients."""
        del rounds
        return null_quantile(clients, side, self.fpr, self.tails)


class SequentialConfig(Config):
    """Average z over rounds; a client that was flagged once stays flagged.

    The share that a whole run may flag is spent over its rounds, most of it early.
    """

    kind: Literal["sequential"] = "sequential"
    fpr: float = Field(default=0.01, gt=0, lt=0.5)
    """The share of honest clients that may be flagged in a whole run."""

    @property
    def said(self) -> str:
        """How tables name it."""
        return f"sequential {100 * self.fpr:g}%"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        """The threshold after this many rounds."""
        spent = self.fpr * 6 / (math.pi * rounds) ** 2
        return null_quantile(clients, side, spent)


class FixedConfig(Config):
    """Flag clients above a fixed score, for scores with an absolute meaning."""

    kind: Literal["fixed"] = "fixed"
    above: float = 0.5
    """The score above which a client is flagged."""

    @property
    def said(self) -> str:
        """How tables name it."""
        return f"above {self.above:g}"

    def cut(self, clients: int, side: Side, rounds: int) -> float:
        del clients, side, rounds
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


def mad_z(scores: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Each score's distance from the median, in robust standard deviations (MAD).

    Where more than half are equal there is no deviation to measure by: the mean one then stands in
    for it, and where all are equal nobody is away from anybody. `floor` is the least that counts as
    a standard deviation.
    """
    away = scores - np.median(scores, axis=-1, keepdims=True)
    size = _MAD * np.median(np.abs(away), axis=-1, keepdims=True)
    mean = 1.2533 * np.abs(away).mean(axis=-1, keepdims=True)  # a normal's, likewise
    size = np.where(size > 1e-12 * np.abs(scores).max(initial=1e-300), size, mean)
    size = np.maximum(size, floor)
    z: np.ndarray = np.divide(away, size, out=np.zeros_like(away), where=size > 0)
    return z


@functools.cache
def null_quantile(clients: int, side: Side, share: float, tails: float | None = None) -> float:
    """What the MAD z of one of so many independent draws exceeds with this probability.

    They are of a normal, or of a Student's t with `tails` degrees of freedom.
    """
    if clients < 3:
        return math.inf
    rng = numpy_rng_for(0, "detectors", "null", clients)
    draws = max(_DRAWS, math.ceil(20 / share)) // clients + 1
    size = (min(draws, 400_000), clients)
    z = mad_z(rng.standard_normal(size) if tails is None else rng.standard_t(tails, size))
    values = np.abs(z) if side == "both" else z
    return float(np.quantile(values, 1 - share))


def suspicion(z: np.ndarray, side: Side) -> np.ndarray:
    """Values as suspicion: the larger, the worse, whichever side is suspicious."""
    ways: dict[Side, np.ndarray] = {"both": np.abs(z), "high": z, "low": -z}
    return ways[side]
