"""Phases of a run, and what is going on in it right now, told in one place to all who ask.

The wire counts packets under the moment, detectors and attacks look away when it is no training, a
failure is told with it. Whatever is thrown, a block that changes it puts it back.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from simsplit.packets import ClientId

Segment = Literal["head", "trunk", "tail", "method"]
SEGMENTS: frozenset[Segment] = frozenset({"head", "trunk", "tail", "method"})
TRAIN = "train"
"""The phase of training proper."""
WARM_UP = "warm_up"
"""A phase that gets a defence going before the server learns."""
EVALUATE = "evaluate"
"""The phase that the `wire` table names for everything but training."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training: which data, which segments learn, whether gradients cross."""

    name: str
    rounds: int
    source: Literal["private", "public"] = "private"
    learns: frozenset[Segment] = SEGMENTS
    gradients: bool = True
    task: bool = True
    """Whether the task is learned, or only the methods' own loss terms."""
    crosses: bool = True
    """Whether anything is sent; if not, a method stands in for the trunk."""
    returns: bool = True
    """Whether gradients of smashed data are sent back; not where nothing before the cut learns."""
    lr: float | None = None
    """Clients' learning rate in it, of what has no optimizer of its own; None: as configured."""
    aside: "Aside | None" = None
    """Steps of another phase between its steps."""


def warming_up(rounds: int, *, crosses: bool = True, lr: float | None = None) -> Phase:
    """A phase in which clients learn the task, and send no gradients."""
    learns: frozenset[Segment] = frozenset({"head", "tail", "method"})
    return Phase(WARM_UP, rounds, learns=learns, gradients=False, crosses=crosses, lr=lr)


def on_public_data(name: str, rounds: int) -> Phase:
    """A phase in which a client's methods learn from public data, and nothing else does."""
    learns: frozenset[Segment] = frozenset({"method"})
    return Phase(name, rounds, source="public", learns=learns, gradients=False, task=False)


@dataclass(frozen=True)
class Aside:
    """Another phase, one step of which follows every `every` steps."""

    phase: Phase
    every: int = 1


@dataclass
class Moment:
    """The current round, phase and clients, and the phase that packets are counted under."""

    round: int = 0
    phase: Phase = field(default_factory=lambda: Phase(TRAIN, rounds=0))
    clients: Sequence[ClientId] = ()
    counted_as: str = TRAIN
    """The phase that the `wire` table names."""

    @property
    def training(self) -> bool:
        """Whether packets now belong to training."""
        return self.counted_as != EVALUATE

    @contextmanager
    def of_round(
        self, number: int, phase: Phase, clients: Sequence[ClientId] = ()
    ) -> Iterator[None]:
        """A context for a round, or for a client's part of one."""
        before = self.round, self.phase, self.clients, self.counted_as
        self.round, self.phase, self.clients, self.counted_as = number, phase, clients, phase.name
        try:
            yield
        finally:
            self.round, self.phase, self.clients, self.counted_as = before

    @contextmanager
    def counting_as(self, name: str) -> Iterator[None]:
        """A context whose packets are counted under another phase."""
        before, self.counted_as = self.counted_as, name
        try:
            yield
        finally:
            self.counted_as = before
