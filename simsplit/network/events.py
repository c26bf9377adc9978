"""This module is the event clock: actors compute, send and queue at the server in simulated time.

An actor is a generator of stages. It is resumed when its last stage is over, in the order of
simulated time, so real work between two stages (such as training a model) is done in the order in
which it would happen. Nothing sleeps, and ties are broken by the actors' order: the same actors
always give the same times.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from simsplit.legs import ClientId

Where = Literal["client", "wire", "server"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A place and its seconds within a client's step; at the server it first waits for a slot."""

    where: Where
    seconds: float


@dataclass(frozen=True, slots=True)
class StepDone:
    """The end of a step. After the `last` one an actor may have more stages, but no more steps."""

    last: bool = False


@dataclass(frozen=True)
class ClientTimes:
    """Simulated times of one client in one round."""

    compute_s: float
    """Seconds in which its device computes."""
    transfer_s: float
    """Seconds in which its packets, sent or received, are on its link."""
    seconds: float
    """Seconds from the round's start until it was done; 0 if it took no part."""
    waiting: float
    """Share of the round's seconds in which it neither computes nor transfers: it waits for the
    server, is served, or is done and waits for the others."""


@dataclass(frozen=True)
class RoundTimes:
    """Simulated times of one round of all clients."""

    seconds: float
    """Seconds until the last client was done."""
    server_busy: float
    """Share of the round's seconds times the server's slots in which these slots computed."""
    waiting: float
    """Mean of `waiting` over the clients that computed or sent anything."""
    clients: Mapping[ClientId, ClientTimes]

    @classmethod
    def from_spent(
        cls,
        spent: Mapping[ClientId, Mapping[Where, float]],
        through: Mapping[ClientId, float],
        slots: int,
    ) -> "RoundTimes":
        """Build the times from each client's seconds by place and the time when it was done."""
        seconds = max(through.values(), default=0.0)
        clients = {}
        for client, at in through.items():
            computes, sends = spent[client]["client"], spent[client]["wire"]
            own = computes + sends
            waiting = 1 - _compute_share(own, seconds) if own else 0.0
            clients[client] = ClientTimes(computes, sends, at, waiting)
        shares = [times.waiting for times in clients.values() if times.compute_s + times.transfer_s]
        return cls(
            seconds,
            _compute_share(sum(by_place["server"] for by_place in spent.values()), seconds * slots),
            sum(shares) / len(shares) if shares else 0.0,
            clients,
        )


def _compute_share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0  # rounding can make a part exceed its whole


Actor = Iterator[Stage | StepDone]


def play(actors: Mapping[ClientId, Actor], slots: int, max_ahead: int | None = None) -> RoundTimes:
    """Run the actors to their ends in simulated time, and return how long everything took.

    The server serves `slots` stages at once, first come, first served. With `max_ahead`, an actor
    does not start a step while it is more than that many steps ahead of the slowest actor that
    still has steps to take; 0 is lockstep.
    """
    return _Loop(actors, slots, max_ahead).run()


class _Loop:
    """The clock's state. Actors are numbered by their position, which also breaks ties."""

    def __init__(self, actors: Mapping[ClientId, Actor], slots: int, max_ahead: int | None) -> None:
        self.clients = list(actors)
        self.actors = list(actors.values())
        self.slots = self.free = slots
        self.race = _Race(len(actors), max_ahead)
        self.due = [(0.0, actor) for actor in range(len(actors))]
        self.queue: deque[tuple[int, float]] = deque()
        self.served: set[int] = set()
        self.spent: list[dict[Where, float]] = [
            {"client": 0.0, "wire": 0.0, "server": 0.0} for _ in actors
        ]
        self.through = [0.0] * len(actors)

    def run(self) -> RoundTimes:
        while self.due:
            now, actor = heappop(self.due)
            if actor in self.served:
                self.served.discard(actor)
                self.free += 1
                if self.queue:
                    self._enter_server(*self.queue.popleft(), now)
            self._resume(actor, now)
        spent = dict(zip(self.clients, self.spent, strict=True))
        through = dict(zip(self.clients, self.through, strict=True))
        return RoundTimes.from_spent(spent, through, self.slots)

    def _resume(self, actor: int, now: float) -> None:
        event = next(self.actors[actor], None)
        if isinstance(event, Stage):
            self.spent[actor][event.where] += event.seconds
            if event.where == "server":
                self._enter_server(actor, event.seconds, now)
            else:
                heappush(self.due, (now + event.seconds, actor))
            return
        if event is None:
            self.through[actor] = now
            released = self.race.leave(actor)
        else:
            released = self.race.finish_step(actor, last=event.last)
        for each in released:
            heappush(self.due, (now, each))

    def _enter_server(self, actor: int, seconds: float, now: float) -> None:
        if self.free:
            self.free -= 1
            self.served.add(actor)
            heappush(self.due, (now + seconds, actor))
        else:
            self.queue.append((actor, seconds))


class _Race:
    """The bound on how far actors may run ahead: it decides which may start their next step."""

    def __init__(self, count: int, max_ahead: int | None) -> None:
        self.max_ahead = max_ahead
        self.taken = dict.fromkeys(range(count), 0)
        """Number of steps taken by each actor that still has steps to take."""
        self.standing = Counter({0: count})
        """Number of these actors by the number of steps taken."""
        self.slowest = 0
        """Smallest number of steps that any of these actors has taken."""
        self.held: set[int] = set()

    def finish_step(self, actor: int, *, last: bool) -> list[int]:
        """Count a step, and return the actors that may go on now."""
        if last:
            return [actor, *self.leave(actor)]
        self.standing[self.taken[actor]] -= 1
        self.taken[actor] += 1
        self.standing[self.taken[actor]] += 1
        self.held.add(actor)
        # unless the slowest has moved, no other actor can have come within the bound
        return self._release(list(self.held) if self._advance_slowest() else [actor])

    def leave(self, actor: int) -> list[int]:
        """Remove an actor that takes no more steps, and return the actors that may go on now."""
        if actor in self.taken:
            self.standing[self.taken.pop(actor)] -= 1
        return self._release(list(self.held)) if self._advance_slowest() else []

    def _advance_slowest(self) -> bool:
        """Update the slowest actor's number of steps, and return whether it has grown."""
        before = self.slowest
        while self.taken and not self.standing[self.slowest]:
            self.slowest += 1
        return self.slowest > before

    def _release(self, waiting: list[int]) -> list[int]:
        """Return those of the waiting actors that are within the bound, and hold them no longer."""
        most = math.inf if self.max_ahead is None else self.slowest + self.max_ahead
        free = [actor for actor in waiting if self.taken[actor] <= most]
        self.held.difference_update(free)
        return free
