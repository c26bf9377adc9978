"""A crowd of clients with few live ones: the others rest as flat tensors until they are asked.

A seat is a live client (modules, optimizer and all) that stands for one client after another. The
weights, moments and counters of the client that leaves are copied out, those of the next are copied
in. A client in the middle of a step keeps its seat. So a crowd needs memory for what it owns alone,
or none where its clients rest on disk, and computes bit for bit what it would compute if all
clients were live.

Clients that share all segments own no weights: of those of a crowd that have not taken part,
nothing is kept at all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import (
    Call,
    CountSteps,
    Enter,
    HandOver,
    Hear,
    LoadOwn,
    OwnState,
    ReportRound,
)
from simsplit.parties.client import Client
from simsplit.parties.feed import Feed
from simsplit.parties.flat import Flat, FlatTensors, Layout, Mirror
from simsplit.parties.on_disk import OnDisk
from simsplit.parties.sharing import TAKEN, collect_own_state
from simsplit.parties.tally import Tally

SEATS = 32
"""The most clients that are live; those in the middle of a step may be more."""
Answer = TypeVar("Answer")


class ClientOrigin(Protocol):
    """Makes clients, and what a resting client needs to become live."""

    def make(self, number: ClientId) -> Client:
        """Make a live client, in its state before training."""

    def feeds(self, number: ClientId) -> dict[str, Feed]:
        """Return a client's streams of batches."""

    def count_steps(self, source: str) -> np.ndarray:
        """Count the batches of all clients in a pass over a source's samples."""

    def seed(self, number: ClientId) -> int:
        """Return the seed of all that a client draws."""

    @property
    def alike(self) -> bool:
        """Whether all clients start from the same weights."""

    def start(self, number: ClientId) -> Mapping[str, nn.Module]:
        """Return a client's own modules in their state before training, to copy from."""


@dataclass(frozen=True)
class Kept:
    """What each client keeps of its own between its turns."""

    weights: Literal["own", "copied", "common"] = "own"
    """own: kept from round to round. copied: of an average, which it gets again before each round.
    common: all clients have the same live ones."""
    moments: bool = True
    """Whether it keeps optimizer moments."""


class InMemory(dict[ClientId, Flat]):
    """A place for clients at rest: the flat forms of those that have been asked.

    A client that is not here is in its state before training.
    """

    def prepare(self, number: ClientId) -> Flat:
        """Return a flat form for a client to be copied into, over its last one."""
        return self.get(number) or Flat()

    def put(self, number: ClientId, flat: Flat) -> None:
        """Keep the flat form itself."""
        self[number] = flat

    def take_tally(self, number: ClientId) -> Tally:
        """Return a client's losses of the round, and forget them."""
        flat = self.get(number)
        if flat is None or flat.tally is None:
            return Tally()
        tally, flat.tally = flat.tally, None
        return tally


class Seat:
    """A live client that can become another."""

    def __init__(self, client: Client, layouts: list[Layout], kept: Kept) -> None:
        (self.learner,) = client.keeping.parts.learners
        self.client, self._layouts, self._kept = client, layouts, kept
        self._weights: Mirror | None = None
        self.start: FlatTensors | None = None
        """The first weights of the client that was made here."""
        if kept.weights != "common":
            self._weights = Mirror(self.learner.weights(), layouts)
            self.start = self._weights.read(None)
        self._moments: Mirror | None = None
        self._entered: Enter | None = None

    @property
    def busy(self) -> bool:
        """Whether the client is in the middle of a step or a pass, and needs its modules."""
        client = self.client
        training = client.training
        waits = training.is_waiting or training.is_between_parts
        return waits or training.is_stacked or client.examination.is_waiting

    def leave(self, flat: Flat) -> None:
        """Copy everything that the client remembers into its flat form."""
        training = self.client.training
        if self._weights is not None:
            flat.weights = self._weights.read(flat.weights)
        moments = self._live_moments() if self._kept.moments else None
        flat.moments = moments.read(flat.moments) if moments is not None else None
        flat.taken = tuple(training.taken.values())
        # A crowd of empty tallies takes more memory than None.
        flat.tally = None if training.end.tally.empty else training.end.tally

    def become(self, number: ClientId, origin: ClientOrigin, flat: Flat | None) -> None:
        """Change into another client; one without a flat form is in its state before training."""
        training = self.client.training
        training.end.number, training.end.seed = number, origin.seed(number)
        training.feeds = origin.feeds(number)
        self._take_weights(number, origin, None if flat is None else flat.weights)
        if flat is None:
            if self._kept.moments:
                self.learner.forget_moments()
            training.taken = dict.fromkeys(training.feeds, 0)
            training.end.tally = Tally()
            return
        if self._kept.moments:
            self._remember(flat)
        training.taken = dict(zip(training.feeds, flat.taken, strict=True))
        training.end.tally = flat.tally or Tally()

    def enter(self, call: Enter | None) -> None:
        """Bring the client to the phase that the call enters."""
        # A round's clients all get one object: a seat sets up its phase once, not for each client.
        if call is not None and call is not self._entered:
            call.on(self.client)
            self._entered = call

    def _take_weights(
        self, number: ClientId, origin: ClientOrigin, rested: FlatTensors | None
    ) -> None:
        """Copy in a client's weights: those with which it rested, or its first ones."""
        if self._weights is None:
            return
        if rested is not None and rested.layout is not self._weights.layout:
            # A row of a run that was resumed: it may have been written on another device.
            self.learner.take(rested.split_by_name())
        elif rested is not None:
            self._weights.write(rested)
        elif origin.alike or self._kept.weights == "copied":
            assert self.start is not None, "read when the seat was made"
            self._weights.write(self.start)
        else:
            for name, module in origin.start(number).items():
                self.learner.modules[name].load_state_dict(module.state_dict())

    def _live_moments(self) -> Mirror | None:
        """Return a mirror of the optimizers' tensors; None if there are none."""
        live = list(self.learner.moments().values())
        if not live:
            return None
        if self._moments is None or not self._moments.mirrors(live):
            self._moments = Mirror(self.learner.moments(), self._layouts)
        return self._moments

    def _remember(self, flat: Flat) -> None:
        """Copy in a client's moments, or drop the present ones."""
        if flat.moments is None:
            self.learner.forget_moments()
            return
        live = self._live_moments()
        # Before its first step a seat has no moments to copy into; afterwards it keeps them.
        if live is None or live.layout is not flat.moments.layout:
            self.learner.forget_moments()
            self.learner.load_moments(flat.moments.split_by_name())
            return
        live.write(flat.moments)


class Roster(Mapping[ClientId, Client]):
    """Many clients by number; a client that is asked for takes a seat."""

    def __init__(
        self,
        numbers: Sequence[ClientId],
        origin: ClientOrigin,
        seats: int,
        kept: Kept,
        *,
        sparse: bool,
        rest: OnDisk | None = None,
    ) -> None:
        """Hold clients, of which `seats` are live; a `sparse` one collects states of few.

        These are the states of the clients that took part. The others rest in `rest`, by default
        in memory.
        """
        # A range costs nothing, however many numbers it has.
        self._numbers = numbers if isinstance(numbers, range) else dict.fromkeys(numbers)
        self._origin, self._most, self._kept, self.sparse = origin, seats, kept, sparse
        self._everyone: Enter | None = None
        """The phase that all clients have entered, unless they are called one by one."""
        self._seats: dict[ClientId, Seat] = {}
        """The seats by client; the client that was asked last comes last."""
        self.rest: OnDisk | InMemory = InMemory() if rest is None else rest
        self._entered: dict[ClientId, Enter] = {}
        self._layouts: list[Layout] = []
        self._sources: tuple[str, ...] = ()
        self._copied: set[ClientId] = set()
        """Clients that rest with copies of an average."""
        self._crowded = seats
        """The number of seats from which on one that is free is looked for."""

    def __getitem__(self, number: ClientId) -> Client:
        """Return the live client; its seat may become another client at the next call."""
        seat = self._seats.pop(number, None) or self._seat(number)
        self._seats[number] = seat
        return seat.client

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def ask(self, number: ClientId, call: Call[Answer]) -> Answer:
        """Return a client's answer; calls that all clients get each round need no seat."""
        brief = _BRIEF.get(type(call))
        if brief is None or number not in self._numbers:
            return call.on(self[number])
        answer: Answer = brief(self, number, call)
        return answer

    def enter(self, call: Enter) -> None:
        """Bring all clients to a phase, those at rest when they are asked."""
        self._everyone = call
        self._entered.clear()
        for seat in self._seats.values():
            seat.enter(call)
        if self._kept.weights == "copied":
            self._drop_copies()

    def announce(self, call: Hear) -> None:
        """Do nothing: clients that rest have no methods, and nothing is announced to them."""
        assert not call.announced, "clients with methods are all live"

    def count_steps(self, source: str) -> np.ndarray:
        """Count each client's batches in a pass over a source's samples."""
        return self._origin.count_steps(source)

    def collect_own(self) -> dict[ClientId, dict[str, Tensor]]:
        """Collect the states of the clients that took part."""
        asked = sorted({*self.rest, *self._seats})
        return {n: self._own_state(n, OwnState()) for n in asked if self._has_begun(n)}

    def _has_begun(self, number: ClientId) -> bool:
        """Return whether a client has taken a batch; others are in their state before training."""
        if (seat := self._seats.get(number)) is not None:
            return any(seat.client.training.taken.values())
        flat = self.rest.get(number)
        return flat is not None and any(flat.taken)

    def load_own(self, states: Mapping[ClientId, dict[str, Tensor]]) -> None:
        """Restore what `collect_own` returned; all others begin anew."""
        self._seats.clear()
        self.rest.clear()
        for number, state in states.items():
            if all(name.startswith(TAKEN) for name in state):
                self.rest.put(number, Flat(taken=tuple(map(int, state.values()))))
            else:
                LoadOwn(state).on(self[number])

    @property
    def rows(self) -> OnDisk | None:
        """The rows of clients that rest on disk; None if they rest in memory."""
        return self.rest if isinstance(self.rest, OnDisk) else None

    def write_rows(self) -> OnDisk:
        """Write the rows of live clients too, and return those of all that have begun."""
        assert self.rows is not None, "asked for where clients rest on disk"
        for number in self._seats:
            self._leave(number)
        return self.rows

    def load_rows(self, state: Mapping[str, Tensor]) -> None:
        """Let clients rest with the rows that a checkpoint names."""
        assert self.rows is not None, "asked for where clients rest on disk"
        self._seats.clear()
        self.rows.load(state)

    def _drop_copies(self) -> None:
        """Drop the last round's copies of an average; whoever takes part gets the next one."""
        # Those with a seat keep theirs, and leave them behind when another takes it.
        for number in self._copied:
            flat = self.rest.get(number)
            if flat is not None and flat.weights is not None:
                flat.weights.give_back()
                flat.weights = None
        self._copied.clear()

    def _leave(self, number: ClientId) -> Flat:
        """Copy out all that a client with a seat remembers, and return its flat form."""
        flat = self.rest.prepare(number)
        self._seats[number].leave(flat)
        self.rest.put(number, flat)
        if self._kept.weights == "copied":
            self._copied.add(number)
        return flat

    def _seat(self, number: ClientId) -> Seat:
        """Give a client a free seat."""
        if number not in self._numbers:
            raise KeyError(number)
        free = self._find_free()
        flat = self.rest.get(number)
        if free is None:
            seat = Seat(self._origin.make(number), self._layouts, self._kept)
            if flat is not None:
                seat.become(number, self._origin, flat)
        else:
            self._leave(free)
            seat = self._seats.pop(free)
            seat.become(number, self._origin, flat)
        seat.enter(self._entered.get(number, self._everyone))
        return seat

    def _find_free(self) -> ClientId | None:
        """Return the client that leaves its seat for another; None: a new seat is needed."""
        if len(self._seats) < self._most:
            self._crowded = self._most
        if len(self._seats) < self._crowded:
            return None
        # Oldest first; a client in a step has a graph, which cannot be copied out.
        free = next((each for each, seat in self._seats.items() if not seat.busy), None)
        # While a whole round is in the middle of a step, each search would ask every seat.
        self._crowded = self._most if free is not None else len(self._seats) * 9 // 8 + 1
        return free

    def _enter(self, number: ClientId, call: Enter) -> None:
        self._entered[number] = call
        if number in self._seats:
            self._seats[number].enter(call)

    def _report(self, number: ClientId, call: ReportRound) -> dict[str, float]:
        """Report the tally: clients at rest have no methods that would report more."""
        if number in self._seats:
            return call.on(self._seats[number].client)
        return self.rest.take_tally(number).read()

    def _count(self, number: ClientId, call: CountSteps) -> int:
        feed = self._origin.feeds(number).get(call.source)
        return 0 if feed is None else feed.steps_per_epoch

    def _hand_over(self, number: ClientId, call: HandOver) -> Packet:
        """Return a client's packet, whose tensors stay when another takes its seat."""
        packet = call.on(self[number])
        if self._kept.weights != "copied":
            return packet
        flat = self._leave(number)
        assert flat.weights is not None, "it has just left them"
        rested = flat.weights.split_by_name()
        return packet.with_tensors(tuple(rested[name] for name in packet.names))

    def _own_state(self, number: ClientId, call: OwnState) -> dict[str, Tensor]:
        """Return a client's own state as views of its flat form, without a seat."""
        # A live client's flat form is out of date, and one that never sat has no weights yet.
        if number in self._seats or number not in self.rest:
            self[number]
            self._leave(number)
        if (flat := self.rest.get(number)) is None:  # not on disk: it has not begun
            return call.on(self[number])
        moments = {} if flat.moments is None else flat.moments.split_by_name()
        self._sources = self._sources or tuple(self._origin.feeds(number))
        taken = zip(self._sources, flat.taken, strict=True)
        if self._kept.weights != "own":
            return collect_own_state([], taken, [moments] if self._kept.moments else [])
        assert flat.weights is not None, "who has rested has weights"
        return collect_own_state([flat.weights.split_by_name() | moments], taken)


# All clients get these at once: with a seat each, the whole crowd would be copied through.
_BRIEF: Mapping[type, Callable[..., Any]] = {
    Enter: Roster._enter,
    ReportRound: Roster._report,
    CountSteps: Roster._count,
    Hear: lambda roster, _, call: roster.announce(call),
    HandOver: Roster._hand_over,
    OwnState: Roster._own_state,
}
