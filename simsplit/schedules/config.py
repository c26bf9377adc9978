"""Who trains when: the order of the clients' steps, and how long a run is.

A round gives every client its local steps: one pass over its part, or `local_steps` of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, model_validator

from simsplit.config import Config
from simsplit.packets import ClientId

DEFAULT_ROUNDS = 10


class ScheduleConfig(Config, ABC):
    """How long to train, and in what order clients take their steps."""

    rounds: int | None = Field(default=None, ge=0)
    """Rounds to train. Set this or `epochs`; 10 rounds if neither is set. 0: the model is evaluated
    and attacked as it is."""
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Passes over all clients' data, in place of `rounds`."""
    local_steps: int | None = Field(default=None, ge=1)
    """Mini-batches per client and round; null: one pass over the client's data."""
    order: Literal["number", "random"] = "number"
    """The order of clients within a round: by number, or drawn anew each round."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.rounds is not None and self.epochs is not None:
            raise ValueError("give rounds or epochs, not both")
        return self

    def num_rounds(self, steps_per_epoch: Mapping[ClientId, int]) -> int:
        """Rounds in all; `epochs` is converted into the rounds that cover as many batches."""
        if self.rounds is not None:
            return self.rounds
        if self.epochs is None:
            return DEFAULT_ROUNDS
        if self.local_steps is None:
            return math.ceil(self.epochs)
        batches = sum(steps_per_epoch.values())
        a_round = sum(self.local(steps_per_epoch).values())
        exact = Fraction(str(self.epochs))  # 1.1 of 100 batches are 110, which floats exceed
        return math.ceil(exact * batches / a_round)

    def local(self, steps_per_epoch: Mapping[ClientId, int]) -> dict[ClientId, int]:
        """How many steps each client takes in a round."""
        if self.local_steps is None:
            return dict(steps_per_epoch)
        steps = self.local_steps
        return {client: steps if epoch else 0 for client, epoch in steps_per_epoch.items()}

    @abstractmethod
    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        """The clients of one round in the order of their steps, each as often as `steps` says."""


class LapsConfig(ScheduleConfig, ABC):
    """Schedules in which clients take one mini-batch each per lap."""

    def laps(self, steps: Mapping[ClientId, int]) -> Iterator[list[ClientId]]:
        """The clients of each lap; a client that has no steps left is in no further lap."""
        for lap in range(max(steps.values(), default=0)):
            yield [client for client, count in steps.items() if lap < count]

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        """Laps of one batch per client."""
        for lap in self.laps(steps):
            yield from lap


class RoundRobinConfig(LapsConfig):
    """Clients take turns, one mini-batch each (LightSplit's Algorithm 1: batch t is client t mod
    n's).
    """

    kind: Literal["round_robin"] = "round_robin"
    turn: int = Field(default=1, ge=1)
    """Mini-batches of a client in a row; what clients share is then handed over that much less."""

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        """Laps of `turn` batches per client, or of as many as it has left."""
        for start in range(0, max(steps.values(), default=0), self.turn):
            for client, count in steps.items():
                for _ in range(min(self.turn, count - start)):
                    yield client


class PerClientConfig(ScheduleConfig):
    """Each client takes all its steps of the round, then the next client (as in SafeSplit)."""

    kind: Literal["per_client"] = "per_client"

    def turns(self, steps: Mapping[ClientId, int]) -> Iterator[ClientId]:
        """All batches of a client, then those of the next."""
        for client, count in steps.items():
            for _ in range(count):
                yield client


class ParallelConfig(LapsConfig):
    """Clients train at the same time, each with its own head; one trunk serves them in order.

    Clients compute while others wait for the trunk, so simulated time is shorter than under
    round_robin (and real time too, on several hosts); what is learned is the same as if they took
    turns.
    """

    kind: Literal["parallel"] = "parallel"


class AsynchronousConfig(LapsConfig):
    """Each client trains at its device's and link's speed; the trunk serves them as they come.

    Between a client's forward and backward pass others may have moved the trunk: its gradient,
    taken on the weights that it saw, is then stale. Who comes first is decided by simulated time
    (`network`), so a run is reproducible. A round's end is a barrier.
    """

    kind: Literal["asynchronous"] = "asynchronous"
    max_ahead: int | None = Field(default=1, ge=0)
    """Bounded staleness: how many steps a client may be ahead of the slowest one still training; 0:
    all take each step together; null: unbounded."""


Schedule = Annotated[
    RoundRobinConfig | PerClientConfig | ParallelConfig | AsynchronousConfig, Discriminator("kind")
]
SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "round_robin": RoundRobinConfig,
    "per_client": PerClientConfig,
    "parallel": ParallelConfig,
    "asynchronous": AsynchronousConfig,
}
