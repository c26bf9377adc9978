"""This module defines the phases of a run, and the moment: the round and phase that it is in.

The wire counts packets under the moment, detectors and attacks ignore moments that are not
training, and an error names the moment. Blocks that change the moment restore it even if they
raise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from simsplit.legs import ClientId

Segment = Literal["head", "trunk", "tail", "method"]
SEGMENTS: frozenset[Segment] = frozenset({"head", "trunk", "tail", "method"})
TRAIN = "train"
"""Name of the main phase, after all warm-ups."""
WARM_UP = "warm_up"
"""Name of a phase in which a defence learns before the server does."""
EVALUATE = "evaluate"
"""Name in the `wire` table for all packets that are not of training."""


@dataclass(frozen=True)
class Phase:
    """Consecutive rounds with the same data, learning segments and crossing gradients."""

    name: str
    rounds: int
    source: Literal["private", "public"] = "private"
    learns: frozenset[Segment] = SEGMENTS
    gradients: bool = True
    task: bool = True
    """Whether the task's loss is learned, besides the methods' own loss terms."""
    crosses: bool = True
    """Whether packets are sent; if not, a method's stand-in replaces the trunk."""
    returns: bool = True
    """Whether gradients of smashed data are sent back; False if nothing before the cut learns."""
    lr: float | None = None
    """Learning rate of the clients' optimizer in this phase; parts with an optimizer of their own
    ignore it. None: as configured."""
    interleaved: "Interleaved | None" = None
    """Another phase with steps between this phase's steps."""


def build_warm_up(rounds: int, *, crosses: bool = True, lr: float | None = None) -> Phase:
    """Build a phase in which clients learn the task and send no gradients."""
    learns: frozenset[Segment] = frozenset({"head", "tail", "method"})
    return Phase(WARM_UP, rounds, learns=learns, gradients=False, crosses=crosses, lr=lr)


def build_public_phase(name: str, rounds: int, *, crosses: bool = True) -> Phase:
    """Build a phase in which only the clients' methods learn, from public data."""
    learns: frozenset[Segment] = frozenset({"method"})
    return Phase(
        name,
        rounds,
        source="public",
        learns=learns,
        gradients=False,
        task=False,
        crosses=crosses,
    )


@dataclass(frozen=True)
class Interleaved:
    """A phase that takes one step after every `every` steps of another phase."""

    phase: Phase
    every: int = 1


@dataclass
class Moment:
    """The current round, phase and clients, and the phase under which packets are counted."""

    round: int = 0
    phase: Phase = field(default_factory=lambda: Phase(TRAIN, rounds=0))
    clients: Sequence[ClientId] = ()
    counted_phase: str = TRAIN
    """Name of the phase in the `wire` table."""
    exposed: str = ""
    """The samples that a client encodes for attacks now, such as targets; empty: none."""

    @property
    def is_training(self) -> bool:
        """Whether packets now belong to training."""
        return self.counted_phase != EVALUATE

    @contextmanager
    def enter_round(
        self, number: int, phase: Phase, clients: Sequence[ClientId] = ()
    ) -> Iterator[None]:
        """Set the moment to a round, or to one client's part of it, within a block."""
        before = self.round, self.phase, self.clients, self.counted_phase
        self.round, self.phase = number, phase
        self.clients, self.counted_phase = clients, phase.name
        try:
            yield
        finally:
            self.round, self.phase, self.clients, self.counted_phase = before

    @contextmanager
    def expose(self, samples: str) -> Iterator[None]:
        """Name the samples that a client encodes for attacks within a block."""
        self.exposed = samples
        try:
            yield
        finally:
            self.exposed = ""

    @contextmanager
    def count_as(self, name: str) -> Iterator[None]:
        """Count packets under another phase within a block."""
        before, self.counted_phase = self.counted_phase, name
        try:
            yield
        finally:
            self.counted_phase = before
