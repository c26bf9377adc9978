"""The event clock: actors that compute, send and queue at the server, in simulated time.

An actor is a generator of stages. It is resumed when the stage it yielded is over, in the order of
simulated time, so what it really does between two stages (train a model, say) is done in the order
in which it would happen. Nothing sleeps, and ties go by the actors' order: the same actors always
give the same times.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from simsplit.packets import ClientId

Where = Literal["client", "wire", "server"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Time that one client's step takes somewhere; at the server it queues for a slot first."""

    where: Where
    seconds: float


@dataclass(frozen=True, slots=True)
class StepDone:
    """The end of a step; `last` says that the actor has no more of them, though it may go on."""

    last: bool = False


@dataclass(frozen=True)
class ClientTimes:
    """Simulated times of one client in one round."""

    compute_s: float
    """Its device computes."""
    transfer_s: float
    """Something of its own is on its link."""
    seconds: float
    """When it was through, from the round's start; 0 if it took no part."""
    waiting: float
    """The rest, as a share of the whole round's seconds: it queues at the server, is served, or is
    through and waits for the others."""


@dataclass(frozen=True)
class RoundTimes:
    """One round of all clients."""

    seconds: float
    """Until the last client was through."""
    server_busy: float
    """Seconds in which the server computed, as a share of the round's seconds times its slots."""
    waiting: float
    """Mean share over the clients that took part (that computed or sent anything)."""
    clients: Mapping[ClientId, ClientTimes]

    @classmethod
    def of(
        cls,
        spent: Mapping[ClientId, Mapping[Where, float]],
        through: Mapping[ClientId, float],
        slots: int,
    ) -> "RoundTimes":
        """From what each client's stages took in all, and when it was through."""
        seconds = max(through.values(), default=0.0)
        clients = {
            client: _client_times(spent[client], at, seconds) for client, at in through.items()
        }
        shares = [times.waiting for times in clients.values() if times.compute_s + times.transfer_s]
        return cls(
            seconds,
            _share(sum(by_place["server"] for by_place in spent.values()), seconds * slots),
            sum(shares) / len(shares) if shares else 0.0,
            clients,
        )


def _client_times(spent: Mapping[Where, float], through: float, seconds: float) -> ClientTimes:
    own = spent["client"] + spent["wire"]
    waiting = 1 - _share(own, seconds) if own else 0.0
    return ClientTimes(spent["client"], spent["wire"], through, waiting)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0  # rounding may take a part past its whole


Actor = Iterator[Stage | StepDone]


def play(actors: Mapping[ClientId, Actor], slots: int, max_ahead: int | None = None) -> RoundTimes:
    """Run the actors to their ends in simulated time, and say how long everything took.

    The server serves `slots` stages at once, first come first served. With `max_ahead` no actor
    starts a step while it has taken more than so many steps beyond the slowest that still has some
    to take: 0 is lockstep.
    """
    return _Loop(actors, slots, max_ahead).run()


class _Loop:
    """The clock's state; actors go by their position, which is also how ties are broken."""

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
                self._leave_server(actor, now)
            self._resume(actor, now)
        spent = dict(zip(self.clients, self.spent, strict=True))
        through = dict(zip(self.clients, self.through, strict=True))
        return RoundTimes.of(spent, through, self.slots)

    def _resume(self, actor: int, now: float) -> None:
        told = next(self.actors[actor], None)
        if isinstance(told, Stage):
            self.spent[actor][told.where] += told.seconds
            if told.where == "server":
                self._enter_server(actor, told.seconds, now)
            else:
                heappush(self.due, (now + told.seconds, actor))
            return
        if told is None:
            self.through[actor] = now
            released = self.race.leave(actor)
        else:
            released = self.race.finish_step(actor, last=told.last)
        for each in released:
            heappush(self.due, (now, each))

    def _enter_server(self, actor: int, seconds: float, now: float) -> None:
        if self.free:
            self.free -= 1
            self.served.add(actor)
            heappush(self.due, (now + seconds, actor))
        else:
            self.queue.append((actor, seconds))

    def _leave_server(self, actor: int, now: float) -> None:
        self.served.discard(actor)
        self.free += 1
        if self.queue:
            self._enter_server(*self.queue.popleft(), now)


class _Race:
    """Who may start its next step: nobody who is too far ahead of the slowest."""

    def __init__(self, count: int, max_ahead: int | None) -> None:
        self.max_ahead = max_ahead
        self.taken = dict.fromkeys(range(count), 0)
        """Steps of each actor that still has some to take."""
        self.standing = Counter({0: count})
        """How many of them have taken so many steps."""
        self.slowest = 0
        """The fewest steps that any of them has taken."""
        self.held: set[int] = set()

    def finish_step(self, actor: int, *, last: bool) -> list[int]:
        """Count a step; the actors that may go on now."""
        if last:
            return [actor, *self.leave(actor)]
        self.standing[self.taken[actor]] -= 1
        self.taken[actor] += 1
        self.standing[self.taken[actor]] += 1
        self.held.add(actor)
        return self._release(list(self.held) if self._slowest_moves() else [actor])

    def leave(self, actor: int) -> list[int]:
        """Strike an actor that takes no more steps; the actors that may go on without it."""
        if actor in self.taken:
            self.standing[self.taken.pop(actor)] -= 1
        return self._release(list(self.held)) if self._slowest_moves() else []

    def _slowest_moves(self) -> bool:
        before = self.slowest
        while self.taken and not self.standing[self.slowest]:
            self.slowest += 1
        return self.slowest > before

    def _release(self, waiting: list[int]) -> list[int]:
        most = math.inf if self.max_ahead is None else self.slowest + self.max_ahead
        free = [actor for actor in waiting if self.taken[actor] <= most]
        self.held.difference_update(free)
        return free
