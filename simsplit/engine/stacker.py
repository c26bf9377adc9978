"""The stacker turns calls to a cohort into steps of stacked clients, where its clients allow it.

Clients that cannot be stacked (malicious ones, for example) are called one by one in the same step.
Clients stay stacked until one of them is asked for anything but a step of the cohort.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from simsplit.legs import ClientId
from simsplit.packets import Packets
from simsplit.parties.calls import Begin, Call, Proceed
from simsplit.parties.client import Client
from simsplit.parties.stackable import describe_form, find_obstacle
from simsplit.parties.stacked_end import StackedEnd

Answer = TypeVar("Answer")
Item = TypeVar("Item")
FEWEST = 2
"""The fewest clients that are worth a stack."""


class Stacker:
    """Stacks of the clients of one process."""

    def __init__(self, clients: Mapping[ClientId, Client], most: int | None = None) -> None:
        """Stack these clients, at most `most` in one stack; None: as many as there are."""
        self.clients, self.most = clients, most
        self._stacks: list[StackedEnd] = []
        self._places: dict[ClientId, StackedEnd] = {}
        self._apart: frozenset[ClientId] = frozenset()
        """Clients of the present cohort that are called one by one."""

    def let_out(self, client: ClientId) -> None:
        """Bring all clients up to date, if this one's weights are now in a stack."""
        if client in self._places:
            self.settle()

    def settle(self) -> None:
        """Bring all stacked clients up to date, and let them go."""
        stacks, self._stacks = self._stacks, []
        self._places, self._apart = {}, frozenset()
        for stack in stacks:
            stack.settle()

    def ask_each(
        self,
        calls: Mapping[ClientId, Call[Answer]],
        ask: Callable[[ClientId, Call[Answer]], Answer],
    ) -> dict[ClientId, Answer]:
        """Answer calls to a cohort: stacked clients at once, and others through `ask`."""
        first = next(iter(calls.values()), None)
        if isinstance(first, Begin) and first.batch is None:
            self._gather(calls)
        elif not isinstance(first, Proceed):
            return {client: ask(client, call) for client, call in calls.items()}
        if len(self._stacks) == 1 and not self._apart:
            return _step(self._stacks[0], calls)  # type: ignore[arg-type, return-value]
        answers: dict[ClientId, Answer] = {}
        for stack in self._stacks:
            mine = {c: call for c, call in calls.items() if self._places.get(c) is stack}
            if mine:
                answers |= _step(stack, mine)  # type: ignore[arg-type]
        return {c: answers[c] if c in answers else ask(c, call) for c, call in calls.items()}

    def _gather(self, cohort: Collection[ClientId]) -> None:
        """Stack the clients of a cohort, unless all of them are stacked already or stay apart."""
        if all(client in self._places or client in self._apart for client in cohort):
            return
        self.settle()
        groups: dict[object, list[Client]] = {}
        for number in cohort:
            client = self.clients[number]
            if find_obstacle(client) is None:
                # Held, so that no other client takes its seat before all are gathered.
                client.training.is_stacked = True
                groups.setdefault(describe_form(client), []).append(client)
        for group in groups.values():
            for some in self.cut(group):
                self._stack(some)
        self._apart = frozenset(cohort) - self._places.keys()

    def cut(self, clients: Iterable[Item]) -> list[list[Item]]:
        """Cut clients into as many as one stack may have."""
        every = [*clients]
        most = self.most or len(every)
        return [every[start : start + most] for start in range(0, len(every), most or 1)]

    def _stack(self, clients: list[Client]) -> None:
        if len(clients) < FEWEST:
            for client in clients:
                client.training.is_stacked = False
            return
        stack = StackedEnd(clients)
        self._stacks.append(stack)
        self._places |= {client.number: stack for client in clients}


def _step(stack: StackedEnd, calls: Mapping[ClientId, Call[Packets]]) -> dict[ClientId, Packets]:
    """Take one turn of a step of stacked clients."""
    first = next(iter(calls.values()))
    if isinstance(first, Begin):
        return stack.begin([*calls], first.round)
    arrived = {c: call.packets for c, call in calls.items() if isinstance(call, Proceed)}
    return stack.proceed(arrived)
