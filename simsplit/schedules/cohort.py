"""Cohorts: the clients that take part in a round, and the ones that drop out of it.

Both are drawn from the seed and the round alone. So rounds are independent of each other, and a
client's dropouts do not depend on the number of others.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from simsplit.config import Config
from simsplit.legs import ClientId
from simsplit.network.clock import Clock
from simsplit.packets import Packet
from simsplit.phases import Phase
from simsplit.schedules.schedule import ScheduleConfig
from simsplit.seeds import numpy_rng_for


class AvailabilityConfig(Config):
    """Windows of rounds in which a client is available, such as phones that charge at night."""

    period: int = Field(default=24, ge=1)
    """Rounds after which windows repeat."""
    window: int = Field(default=8, ge=1)
    """Rounds of each period in which a client is available."""
    phases: Literal["random", "same"] = "random"
    """Whether each client's window starts at a random round, or all start together."""

    def mark_available(self, count: int, round_number: int, seed: int) -> np.ndarray:
        """Mark the clients, of so many, that are available in a round."""
        random = self.phases == "random"
        starts = _draw_starts(count, self.period, seed) if random else np.zeros(count, np.int64)
        available: np.ndarray = (round_number - 1 + starts) % self.period < self.window
        return available


@lru_cache(maxsize=4)
def _draw_starts(count: int, period: int, seed: int) -> np.ndarray:
    """Draw the starts of all clients' windows; a crowd's take seconds, so they are kept."""
    rngs = (numpy_rng_for(seed, "availability", client) for client in range(count))
    return np.fromiter((rng.integers(period) for rng in rngs), np.int64, count)


class CohortConfig(Config):
    """Which clients take part in a round, and how they may fail."""

    fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the clients that is selected each round; at least one client is."""
    sampling: Literal["uniform", "weighted"] = "uniform"
    """Whether clients are drawn with equal chances, or in proportion to their number of batches."""
    dropout: float = Field(default=0.0, ge=0, le=1)
    """Probability that a client drops out of the round in the middle of one of its steps. That step
    does not change the trunk; the client's share of an average is lost."""
    availability: AvailabilityConfig | None = None
    """Windows in which clients are available; null: always."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Simulated seconds of a client's own computing and sending in a round, after which it is late;
    needs `network`. Waiting does not count, and neither do weights that go up to be averaged."""
    late: Literal["skip", "await"] = "skip"
    """skip: a late client's remaining steps are skipped, and averages leave it out. await: lateness
    is only counted."""

    @property
    def whole(self) -> bool:
        """Whether all clients always take part, and none fails."""
        return self == CohortConfig(sampling=self.sampling, late=self.late)

    def compute_share(self, count: int) -> Fraction:
        """Return the share of `count` clients that is selected in a round."""
        return Fraction(self.count_selected(count), count)

    def count_selected(self, count: int) -> int:
        """Return the number of `count` clients that are selected in a round, if available."""
        return max(1, round(self.fraction * count))


@dataclass(frozen=True)
class Lineup:
    """The clients that take part in a round, in order, and the steps of each."""

    round: int
    phase: Phase
    lr_factor: float
    steps: Mapping[ClientId, int]
    """Steps that each client takes, or begins."""
    drops: frozenset[ClientId] = frozenset()
    """Clients that drop out in the middle of their last step."""
    most: int = 0
    """Steps of a client that drops out of none, the most of all."""

    @property
    def clients(self) -> list[ClientId]:
        """The clients that take part in the round."""
        return list(self.steps)


def choose(
    config: CohortConfig,
    schedule: ScheduleConfig,
    batches: np.ndarray,
    round_number: int,
    seed: int,
) -> tuple[dict[ClientId, int], frozenset[ClientId]]:
    """Draw the clients that take part, in order, with their steps, and the ones that drop out.

    `batches` has the number of each client's batches in a pass over its data.
    """
    steps = schedule.limit_steps(batches)
    able = steps > 0
    if config.availability is not None:
        able = able & config.availability.mark_available(len(batches), round_number, seed)
    chosen = _draw(config, np.flatnonzero(able), batches, round_number, seed)
    if schedule.order == "random":
        numpy_rng_for(seed, "order", round_number).shuffle(chosen)
    taken = {client: int(steps[client]) for client in chosen}
    dropped = {}
    for client in chosen if config.dropout else ():
        rng = numpy_rng_for(seed, "dropout", round_number, client)
        if rng.random() < config.dropout:
            # Plus 1, as the step that it drops out of is begun.
            dropped[client] = int(rng.integers(steps[client])) + 1
    return taken | dropped, frozenset(dropped)


def _draw(
    config: CohortConfig,
    able: np.ndarray,
    batches: np.ndarray,
    round_number: int,
    seed: int,
) -> list[ClientId]:
    """Draw as many clients as the config says from the able ones, sorted by number."""
    # A share of all clients, so that absent ones do not make rounds smaller.
    wanted = config.count_selected(len(batches))
    if wanted >= len(able):
        return [*able.tolist()]
    rng = numpy_rng_for(seed, "cohort", round_number)
    chances = None
    if config.sampling == "weighted":
        chances = batches[able] / batches[able].sum()
    # `order` alone decides who comes first, not the order of the draw.
    return sorted(int(c) for c in rng.choice(able, wanted, replace=False, p=chances))


class RoundPace:
    """Each client's own seconds since the round began, against a deadline if there is one.

    Only a client's own computing and sending count, not its waiting for others. This is a tap of
    the wire: it knows of a step what packets show.
    """

    def __init__(
        self, clock: Clock | None, *, deadline_s: float | None = None, skips: bool = False
    ) -> None:
        self.clock, self.deadline_s = clock, deadline_s
        self.skips = skips and deadline_s is not None
        """Whether late clients take no further step."""
        self.spent_s: dict[ClientId, float] = defaultdict(float)

    def restart(self, spent_s: Mapping[ClientId, float] | None = None) -> None:
        """Begin a round; `spent_s` has the seconds of it that were observed elsewhere."""
        self.spent_s.clear()
        self.spent_s.update(spent_s or {})

    def is_late(self, client: ClientId) -> bool:
        """Tell whether a client is past the deadline."""
        return self.deadline_s is not None and self.spent_s[client] > self.deadline_s

    def stops(self, client: ClientId) -> bool:
        """Tell whether a client takes no further step."""
        return self.skips and self.is_late(client)

    def observe(self, packet: Packet) -> None:
        """Add the time of a packet, and of the computing behind it."""
        assert self.clock is not None, "a deadline without network is refused"
        self.spent_s[packet.client] += self.clock.compute_own_s(packet)

    def receive(self, client: ClientId, packet: Packet) -> None:
        """Add the time that a client takes to receive a hand-over."""
        if self.clock is not None:
            self.spent_s[client] += self.clock.rates[client].compute_received_s(1, packet.nbytes)
