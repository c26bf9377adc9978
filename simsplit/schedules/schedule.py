"""Schedules: the order of the clients' steps, and the length of a run.

In a round every client takes its local steps: one pass over its part, or `local_steps` steps.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Discriminator, Field, model_validator

from simsplit.config import Config, map_kinds
from simsplit.legs import ClientId

DEFAULT_ROUNDS = 10
_ALL = Fraction(1)
MOST = 10**9
"""Rounds, passes over the data, or steps of a client in a round, at most."""


class ScheduleConfig(Config, ABC):
    """How long to train, and in what order clients take their steps."""

    rounds: int | None = Field(default=None, ge=0, le=MOST)
    """Rounds to train. Set this or `epochs`; 10 rounds if neither is set. 0: the untrained model is
    evaluated and attacked."""
    epochs: float | None = Field(default=None, gt=0, le=MOST, allow_inf_nan=False)
    """Passes over all clients' data, in place of `rounds`."""
    local_steps: int | None = Field(default=None, ge=1, le=MOST)
    """Mini-batches per client and round; null: one pass over the client's data."""
    order: Literal["number", "random"] = "number"
    """The order of clients within a round: by number, or drawn anew each round."""

    @model_validator(mode="after")
    def _refuse_two_lengths(self) -> Self:
        if self.rounds is not None and self.epochs is not None:
            raise ValueError("give rounds or epochs, not both")
        return self

    def count_rounds(self, batches: np.ndarray, share: Fraction = _ALL) -> int:
        """Return the number of rounds, by each client's number of batches in a pass over its data.

        `epochs` become the rounds that cover as many batches; `share` of the clients is selected in
        each.
        """
        if self.rounds is not None:
            return self.rounds
        if self.epochs is None:
            return DEFAULT_ROUNDS
        exact = Fraction(str(self.epochs)) / share  # 1.1 of 100 batches are 110, more in floats
        if self.local_steps is None:
            return math.ceil(exact)
        return math.ceil(exact * int(batches.sum()) / int(self.limit_steps(batches).sum()))

    def limit_steps(self, batches: np.ndarray) -> np.ndarray:
        """Return the steps that each client takes in a round, by its number of batches."""
        # `local_steps` cannot be taken by a client without a batch.
        return batches if self.local_steps is None else np.where(batches, self.local_steps, 0)

    @abstractmethod
    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        """List the clients of one round in the order of their steps, each `steps` times."""


class LapsConfig(ScheduleConfig, ABC):
    """Schedules in which clients take one mini-batch each per lap."""

    def laps(self, steps: Mapping[ClientId, int]) -> Iterator[list[ClientId]]:
        """Yield the clients of each lap; a client without steps left is in no further lap."""
        for lap in range(max(steps.values(), default=0)):
            yield [client for client, count in steps.items() if lap < count]

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        for lap in self.laps(steps):
            yield from lap


class RoundRobinConfig(LapsConfig):
    """Clients take turns, one mini-batch each (LightSplit's Algorithm 1: batch t is that of client
    t mod n).
    """

    kind: Literal["round_robin"] = "round_robin"
    turn: int = Field(default=1, ge=1)
    """Mini-batches of a client in a row; the shared head is handed over once for all of them."""

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        for start in range(0, max(steps.values(), default=0), self.turn):
            for client, count in steps.items():
                for _ in range(min(self.turn, count - start)):
                    yield client


class PerClientConfig(ScheduleConfig):
    """Each client takes all its steps of the round, then the next client (as in SafeSplit)."""

    kind: Literal["per_client"] = "per_client"

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        for client, count in steps.items():
            for _ in range(count):
                yield client


class ParallelConfig(LapsConfig):
    """Clients train at the same time, each with its own head; one trunk serves them in order.

    Clients compute while others wait for the trunk, so simulated time is shorter than under
    round_robin, and real time too on several hosts. The result is the same as if they took turns.
    """

    kind: Literal["parallel"] = "parallel"


class AsynchronousConfig(LapsConfig):
    """Each client trains at its device's speed; the trunk serves packets as they arrive.

    Between a client's forward and backward pass others may have moved the trunk. The client's
    gradient, computed on the weights that it saw, is then stale. Simulated time (`network`) decides
    the order, so a run is reproducible. The end of a round is a barrier.
    """

    kind: Literal["asynchronous"] = "asynchronous"
    max_ahead: int | None = Field(default=1, ge=0)
    """Bound on staleness: the most steps that a client may be ahead of the slowest one that still
    trains; 0: all take each step together; null: no bound."""


Schedule = Annotated[
    RoundRobinConfig | PerClientConfig | ParallelConfig | AsynchronousConfig, Discriminator("kind")
]
SCHEDULES: dict[str, type[ScheduleConfig]] = map_kinds(Schedule)
