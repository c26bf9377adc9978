"""Clients on machines of their own owners: each call is a message on its client's stream.

Answers are taken in the order in which they are asked for, as with hosts, so that results are those
of one process. What a client answers is checked before anything is made of it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from simsplit.deploy.expected import Expected
from simsplit.deploy.handing import Judge
from simsplit.deploy.messages import answer_form, call_told, understood
from simsplit.deploy.session import Blames, ClientLost, Session
from simsplit.deploy.sockets import What, what_of
from simsplit.engine.host import on_device
from simsplit.engine.pool import Job, Outcome, Pool, Workshop
from simsplit.errors import ProtocolError, SimsplitError
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import (
    Begin,
    BeginAside,
    Call,
    HandOver,
    Plan,
    Probe,
    Proceed,
    Receive,
    Write,
    WriteOn,
)

Answer = TypeVar("Answer")
KEEP, BACK_TO = "keep", "back_to"
MARK, UNDO = "mark", "undo"
AT_ONCE = 8
"""Clients that train at the same time against trunks of their own, each of which takes memory."""


class RemotePool(Pool):
    """A run's clients, each behind a stream of its own."""

    remote: ClassVar[bool] = True

    def __init__(
        self,
        sessions: Mapping[ClientId, Session],
        expected: Expected,
        device: torch.device,
        lose: Callable[[ClientId, str, bool], None],
        judge: Judge | None = None,
    ) -> None:
        """`lose` is told of a client that is asked no more, and whether for what it sent; `judge`
        knows whose fault it is that a hand-over cannot be used.
        """
        self.sessions, self.expected, self.device = sessions, expected, device
        self._lose, self._judge = lose, judge
        self._received: dict[ClientId, Packet] = {}
        self._ahead: deque[ClientId] = deque()
        self._round = 0
        self._asides = False
        self._early: dict[ClientId, int] = {}
        self._stepping: set[ClientId] = set()
        self._left = threading.Event()
        """Set while clients that train at the same time stop, since one of them was lost."""
        self._workshops: list[Workshop] = []

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """A message, and the wait for its answer."""
        if isinstance(call, Plan):
            planned: Answer = self._planned(call)
            return planned
        if self._left.is_set():
            raise ProtocolError("another client of the round was lost")
        if isinstance(call, Begin) and client in self._early:
            number = self._early.pop(client)
        else:
            number = self._send(client, call)
        answer = self._answered(client, call, number)
        if isinstance(call, Proceed | BeginAside) and answer == ():
            self._through(client)
        return answer

    def tell(self, client: ClientId, call: Call[object]) -> None:
        """The same, not waited for: a failure is met with the next answer that is."""
        self._send(client, call, awaited=False)
        if isinstance(call, Proceed) and not self._asides:
            self._through(client)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """All at once; clients that were expelled are not asked, and not in the answers."""
        there = {client: call for client, call in calls.items() if client in self.sessions}
        numbers = {client: self._send(client, call) for client, call in there.items()}
        return {c: self._answered(c, calls[c], number) for c, number in numbers.items()}

    def expect(self, turns: Sequence[ClientId], round_number: int, *, asides: bool = False) -> None:
        """Have every client begin its next step when it is through with its last one."""
        self._ahead, self._round, self._asides = deque(turns), round_number, asides
        self._work_ahead()

    def train_rounds(
        self, jobs: Mapping[ClientId, Job], trunk: Mapping[str, Tensor]
    ) -> Iterator[tuple[ClientId, Outcome]]:
        """All at the same time, against copies of the trunk that are here; given back in order."""
        clients = list(jobs)
        for start in range(0, len(clients), AT_ONCE):
            some = clients[start : start + AT_ONCE]
            outcomes = self._at_once({client: jobs[client] for client in some}, trunk)
            yield from ((client, outcomes[client]) for client in some)

    def _at_once(
        self, jobs: Mapping[ClientId, Job], trunk: Mapping[str, Tensor]
    ) -> dict[ClientId, Outcome]:
        """Each in a thread of its own: copies know nothing of each other, nor do streams."""
        own = self.workshop
        assert own is not None, "assembly gives one to every splitfed_v1"
        while len(self._workshops) < len(jobs):
            self._workshops.append(own.make_another() if self._workshops else own)
        alike = partial(torch.set_num_threads, torch.get_num_threads())
        most = 1 if own.draws else len(jobs)
        try:
            with ThreadPoolExecutor(most, initializer=alike) as threads:
                at_work = {
                    client: threads.submit(workshop.train, client, job, trunk)
                    for (client, job), workshop in zip(jobs.items(), self._workshops, strict=False)
                }
                try:
                    for future in wait(at_work.values(), return_when=FIRST_EXCEPTION).done:
                        future.result()
                except BaseException:
                    self._left.set()  # the others are asked no more, for the round is done again
                    raise
        finally:
            self._left.clear()
        return {client: future.result() for client, future in at_work.items()}

    def keep(self, round_number: int) -> None:
        """Every client writes a checkpoint of its own."""
        self._command(KEEP, round_number)

    def return_to(self, round_number: int) -> None:
        """Every client takes up the checkpoint that it wrote then."""
        for session in self.sessions.values():
            session.forget()
        self._command(BACK_TO, round_number)

    def mark(self, round_number: int) -> None:
        """Every client remembers how it is, in memory."""
        self._command(MARK, round_number)

    def undo(self, round_number: int) -> None:
        """Every client is again as it was then."""
        self._command(UNDO, round_number)

    def _command(self, name: str, round_number: int) -> None:
        numbers = {}
        for client, session in self.sessions.items():
            with self._blamed(client):
                numbers[client] = session.ask(What(name), {name: round_number})
        for client, number in numbers.items():
            with self._blamed(client):
                self.sessions[client].answer(number)

    def _send(self, client: ClientId, call: Call[object], *, awaited: bool = True) -> int:
        header, tensors = call_told(call)
        if isinstance(call, Receive):
            self._received[client] = call.packet
        with self._blamed(client):
            return self.sessions[client].ask(what_of(call), header, tensors, awaited=awaited)

    def _answered(self, client: ClientId, call: Call[Answer], number: int) -> Answer:
        with self._blamed(client):
            header, tensors = self.sessions[client].answer(number)
            if header.keys() != {"answer"}:
                raise ProtocolError("a message that is no answer")
            answer: Answer = understood(answer_form(call), header["answer"], tensors)
            self._check(client, call, answer)
        return on_device(answer, self.device)

    def _check(self, client: ClientId, call: Call[object], answer: object) -> None:
        """Whether the packets of an answer are those that the call asks for."""
        packets = (answer,) if isinstance(answer, Packet) else answer
        if not isinstance(packets, tuple):
            return
        first = call.packets[0] if isinstance(call, Proceed) else None
        for packet in packets:
            if packet.client != client or packet.round != self._round_of(call, packet):
                raise ProtocolError("a packet of another client or round")
            self.expected.check(packet, first, by_client=True)
            first = first or packet
        legs = tuple(packet.leg for packet in packets)
        if legs not in self._legs(call):
            raise ProtocolError(f"packets on {', '.join(legs) or 'no leg'} in answer to {call}")

    def _legs(self, call: Call[object]) -> Sequence[tuple[str, ...]]:
        """The legs that may come in answer to a call."""
        topology = self.expected.scenario.crossings
        turns = [turn for turn in topology.training.turns if turn.by_client]
        match call:
            case HandOver():
                return [("handover",)]
            case WriteOn():
                return [tuple(topology.inference.turns[0].sends), ()]
            case Probe() | Write():
                return [tuple(topology.inference.turns[0].sends)]
            case Begin() | BeginAside():
                return [tuple(turns[0].sends), ()]
            case Proceed():
                return [tuple(turn.sends) for turn in turns[1:]] + [()]
        return [()]

    def _round_of(self, call: Call[object], packet: Packet) -> int:
        """The round that a packet in answer to a call belongs to."""
        if isinstance(call, Proceed | WriteOn):
            return call.packets[0].round
        return int(getattr(call, "round", packet.round))

    def _planned(self, call: Plan) -> Any:  # noqa: ANN401 - as the call says
        """What methods ask for follows from the scenario: no client is believed in this."""
        stack = self.expected.stacks[0]
        return stack.plan(call.rounds), stack.proper()

    def _through(self, client: ClientId) -> None:
        self._stepping.discard(client)
        self._work_ahead()

    def _work_ahead(self) -> None:
        """In the order of the turns, as long as none waits for an earlier one of its own."""
        while self._ahead and self._ahead[0] not in self._stepping:
            client = self._ahead.popleft()
            self._stepping.add(client)
            self._early[client] = self._send(client, Begin(self._round))

    def _blamed(self, client: ClientId) -> "_Blamed":
        return _Blamed(client, self._lose, self._guilty)

    def _guilty(self, client: ClientId, key: Tensor) -> ClientId:
        """A client that blames another for a hand-over, or the other if it does so rightly."""
        packet = self._received.get(client)
        if packet is None or packet.sealed is None or self._judge is None:
            return client
        rightly = self._judge.blames_rightly(packet, key.numpy().tobytes())
        return packet.client if rightly else client


class _Blamed:
    """A block in which whatever is wrong with an answer costs its client its stream."""

    def __init__(
        self,
        client: ClientId,
        lose: Callable[[ClientId, str, bool], None],
        guilty: Callable[[ClientId, Tensor], ClientId],
    ) -> None:
        self.client, self.lose, self.guilty = client, lose, guilty

    def __enter__(self) -> None:
        """Begin to watch; all is done at the end."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Lose the client, and say why."""
        if isinstance(error, ClientLost):
            self.lose(self.client, error.cause, False)
            return
        if isinstance(error, Blames) and (guilty := self.guilty(self.client, error.key)) != (
            self.client
        ):
            why = "it sent a hand-over that is none, as its receiver has shown"
            self.lose(guilty, why, True)
            raise ClientLost(guilty, why) from None
        if isinstance(error, SimsplitError):
            why = f"it sent {error}, and is asked no more"
            self.lose(self.client, why, True)
            raise ClientLost(self.client, why) from None
