"""A client's own account: what its training has spent, and what a budget allows.

Each client counts for itself, in a simulation as on its owner's machine: what it needs is its own
number of samples and how often it has sent them. Weights that learn by `train.dp` are one Gaussian
release for each batch. Replacing a sample moves the sum of clipped gradients by at most twice the
clipping norm, so the noise is half as large in units of that distance.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simsplit.data.batches import compute_rate
from simsplit.errors import ScenarioError
from simsplit.methods.dp_forward import compute_gaussian_sigma
from simsplit.parties.dp_config import DpConfig
from simsplit.parties.feed import count_batches
from simsplit.privacy.composition import Releases, compose, find_multiplier
from simsplit.scenario import Scenario

FEWEST = 100
"""The smallest number of samples whose inverse is used as delta."""
MOST_SENDINGS = 10**9
_ROUNDING = 1 + 1e-9


def choose_delta(delta: float | None, samples: int) -> float:
    """Return the delta at which a client reports epsilon."""
    return delta or 1 / max(samples, FEWEST)


@dataclass(frozen=True)
class Account:
    """The sizes of a client's noise, from which epsilon follows by the number of sendings."""

    precision: float
    """1 / multiplier^2 of the noise at the cut, of all legs together; 0: there is none."""
    learning: float | None
    """The multiplier of the noise on weights, in units of the distance; None: there is none."""
    rate: float
    """The probability with which a sample is in a batch that nobody sees; 1: it is seen."""
    delta: float
    limit: float | None = None
    """The epsilon beyond which the client trains no further; None: it has no limit."""
    in_round: int = 0
    """The batches of a round in which the client does not drop out."""

    @property
    def is_amplified(self) -> bool:
        """Whether each batch counts, rather than each one that has a sample."""
        return self.rate < 1

    @cached_property
    def most(self) -> int | None:
        """The most sendings within the limit; None: there is no limit."""
        if self.limit is None:
            return None
        few, many = 0, 1
        while self.compute(many) <= self.limit and many < MOST_SENDINGS:
            few, many = many, 2 * many
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (middle, many) if self.compute(middle) <= self.limit else (few, middle)
        return few

    def compute(self, times: int) -> float:
        """Return epsilon after so many sendings; raise ImportError without dp-accounting."""
        parts = []
        if self.precision:
            parts.append(Releases(self.precision**-0.5, times))
        if self.learning is not None:
            parts.append(Releases(self.learning, times, self.rate))
        return compose(tuple(parts), self.delta)


@dataclass(frozen=True)
class Learning:
    """The part that weights have in a guarantee: they learn by `train.dp`."""

    scenario: Scenario
    precision: float
    """Of the noise at the cut that the same samples pass."""
    seen: bool
    """Whether who is protected against sees the batches, whose rows cross."""
    delta: float | None = None
    """The delta at which a budget is meant; None: one over the client's number of samples."""
    budget: "Learning | None" = None
    """The part in the guarantee for which the noise is found; None: in this one."""

    @property
    def config(self) -> DpConfig:
        """The fields of `train.dp`."""
        assert self.scenario.train.dp is not None, "made only where weights learn by it"
        return self.scenario.train.dp

    def get_rate(self, samples: int) -> float:
        """Return the rate that amplifies privacy; 1 if nothing does."""
        if self.seen or self.config.sampling == "passes":
            return 1.0
        return compute_rate(samples, self.scenario.train.batch_size)

    def count_planned(self, samples: int) -> int:
        """Return how often a client's samples will be sent in the whole run, at most."""
        train, schedule = self.scenario.train, self.scenario.schedule
        batches = count_batches(samples, train.batch_size, drop_last=train.drop_last)
        own = np.array([batches])
        share = self.scenario.cohort.compute_share(self.scenario.clients.count)
        steps = schedule.count_rounds(own, share) * int(schedule.limit_steps(own)[0])
        return steps if self.get_rate(samples) < 1 else math.ceil(steps / max(1, batches))

    def find_multiplier(self, samples: int) -> float:
        """Return a client's noise, in units of the clipping norm; found if a budget is given."""
        if self.config.multiplier is not None:
            return self.config.multiplier
        if self.budget is not None:
            return self.budget.find_multiplier(samples)
        if self.seen and self.config.sampling == "poisson":
            raise ScenarioError(
                "train.dp.sampling",
                "got poisson, but the server sees who is in a batch, so that drawing amplifies "
                "nothing, and how often a sample is sent is not known beforehand; use passes, or "
                "multiplier in place of epsilon",
            )
        delta = choose_delta(self.delta, samples)
        budget, times = self.config.epsilon, self.count_planned(samples)
        assert budget is not None, "one of both is given"
        if not times:
            return 1.0
        rate = self.get_rate(samples)
        if rate < 1:
            found = 2 * find_multiplier(budget, delta, Releases(1.0, times, rate))
        else:
            left = compute_gaussian_sigma(budget, delta) ** -2 / times - self.precision
            found = 2 * left**-0.5 * _ROUNDING if left > 0 else math.inf
        if not math.isfinite(found):
            alone = compose((Releases(self.precision**-0.5, times),), delta)
            raise ScenarioError(
                "train.dp.epsilon",
                f"got {budget:g}, but the noise at the cut alone spends {alone:.3g} in {times} "
                "sendings of a sample; use more noise there, fewer rounds, or a larger budget",
            )
        return found
