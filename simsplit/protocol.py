"""This module defines a protocol as data: the crossings of one step in their order.

Code that walks a protocol (clients in turn or at once, by events, one side only, without learning)
needs to know nothing else: neither which side owns a segment nor what a leg means.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from simsplit.legs import Leg

Passes = Mapping[str, int]
"""Number of forward passes by segment; a backward pass counts as two."""


@dataclass(frozen=True)
class Crossing:
    """The crossing of one packet from one side to the other."""

    leg: Leg
    gradient: Leg | None = None
    """The later leg that returns the gradient of these tensors; None if there is none."""
    work: Passes = field(default_factory=dict)
    """The passes that the sender computes to make the packet."""


@dataclass(frozen=True)
class Turn:
    """The part of a step that one side does without waiting: it takes packets, then sends some."""

    by_client: bool
    takes: tuple[Leg, ...]
    sends: tuple[Leg, ...]
    """Legs of the packets sent; empty in a client's last turn."""
    work: Passes
    first: bool
    """Whether this is the side's first turn of the step."""
    last: bool
    """Whether this is the side's last turn of the step."""

    @property
    def leg(self) -> Leg:
        """The leg that names the turn in messages: the first one sent, else the last one taken."""
        return (*self.sends[:1], *self.takes[-1:])[0]


@dataclass(frozen=True)
class Protocol:
    """The crossings of one client's step, in order."""

    crossings: tuple[Crossing, ...]
    closing: Passes = field(default_factory=dict)
    """The passes that the client computes after the last crossing."""

    def __post_init__(self) -> None:
        legs = [crossing.leg for crossing in self.crossings]
        assert legs[0].up, "a client begins"
        assert not legs[-1].up, "a client's last turn has something to take"
        for index, crossing in enumerate(self.crossings):
            if (back := crossing.gradient) is not None:
                assert back in legs[index + 1 :], f"the gradient of {crossing.leg} never returns"
                assert back.up is not crossing.leg.up, f"{back} goes the way of {crossing.leg}"

    @property
    def legs(self) -> tuple[Leg, ...]:
        """All legs, in order."""
        return tuple(crossing.leg for crossing in self.crossings)

    def list_legs_of_labels(self) -> frozenset[Leg]:
        """Return the legs that only a client with labels crosses: all but the first and its
        gradient's.
        """
        first = self.crossings[0]
        return frozenset(leg for leg in self.legs if leg not in (first.leg, first.gradient))

    def select_without(self, legs: Collection[Leg]) -> "Protocol":
        """Return the crossings of a client that these legs pass by.

        The server's work is left out: it is done once for all clients of a step.
        """
        return Protocol(
            tuple(
                crossing if crossing.leg.up else replace(crossing, work={})
                for crossing in self.crossings
                if crossing.leg not in legs
            ),
            self.closing,
        )

    @property
    def turns_before_dropout(self) -> tuple[Turn, ...]:
        """The turns that still happen if a client drops out after its first packet."""
        # the server answers only when it has all packets of the first turn
        return self.turns[: 2 if len(self.turns[0].sends) == 1 else 1]

    @property
    def legs_before_dropout(self) -> tuple[Leg, ...]:
        """The legs that are still crossed if a client drops out after its first packet."""
        first, *answer = self.turns_before_dropout
        return (*first.sends[:1], *(leg for turn in answer for leg in turn.sends))

    @cached_property
    def gradients(self) -> frozenset[Leg]:
        """The legs that carry gradients; a phase can leave them out."""
        return frozenset(c.gradient for c in self.crossings if c.gradient is not None)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The crossings as turns of the two sides; the client has the first and the last turn."""
        # consecutive crossings in one direction need no answer between them: one turn
        runs = [tuple(run) for _, run in groupby(self.crossings, key=lambda c: c.leg.up)]
        ends = [(), *(tuple(each.leg for each in run) for run in runs), ()]
        totals = [sum((Counter(each.work) for each in run), Counter()) for run in runs]
        works = [*totals, self.closing]
        count = len(works)
        return tuple(
            Turn(
                by_client=number % 2 == 0,
                takes=ends[number],
                sends=ends[number + 1],
                work=works[number],
                first=number < 2,
                last=number >= count - 2,
            )
            for number in range(count)
        )
