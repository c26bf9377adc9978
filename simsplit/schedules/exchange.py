"""The choreography of a step: one walk over a topology's protocol, in every way that it is walked.

In turn, a cohort at once, as events come, abandoned half-way, without learning (evaluation, texts
that are continued, exposure to attacks): each is the same walk, with other calls to the clients and
another manner of the server. Nothing here knows which legs there are.

Whatever a client, a method or the server throws in the middle of a step becomes one message that
says whose step it was, in which round, and on which leg.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from simsplit.detectors import Sensor
from simsplit.engine.pool import ClientError, Pool
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.packets import ClientId, Leg, Packet, Packets
from simsplit.parties.calls import (
    Abandon,
    Begin,
    BeginAside,
    Call,
    CloseSession,
    ContinueTexts,
    Expose,
    ExposeAnswer,
    HandOver,
    Hear,
    Note,
    Predict,
    Probe,
    ProbeTexts,
    Proceed,
    Receive,
    ReportRound,
    Write,
    WriteOn,
)
from simsplit.parties.server import Manner, Server
from simsplit.protocol import Turn
from simsplit.topologies import Topology
from simsplit.wire import Wire

WITHOUT_TRUNK = "without_trunk"
"""The reading of an evaluation in which the server hands back what it is sent."""
Event = Packet | Turn
"""Of a walk: a packet that sets out, or the turn that is about to be taken."""
Probing = Probe | ProbeTexts | ContinueTexts
Proceeding = Callable[[Packets, Leg], Call[Packets]]
"""What a client is asked that has received packets and is to make a leg."""


@dataclass(frozen=True)
class _Walk:
    """What one way of walking asks for."""

    begin: Call[Packets]
    turns: Sequence[Turn]
    manner: Manner
    proceed: Proceeding = Proceed


class Exchange:
    """Steps of clients with the server, over one wire."""

    def __init__(self, pool: Pool, server: Server, wire: Wire, topology: Topology) -> None:
        self.pool, self.server, self.wire, self.topology = pool, server, wire, topology
        self.moment = wire.moment
        self.sensor: Sensor | None = None
        """What detectors see by; a tap of the wire."""
        self.holder: ClientId | None = None
        """The client that trained last, and so holds what is handed from client to client."""
        self.reading = ""
        """The control whose outputs are asked for; empty: none."""
        self._sessions = 0
        self._at: tuple[ClientId, Leg] | None = None
        """Whose walk is under way, and on which leg it is."""

    def step(self, client: ClientId) -> None:
        """Let one client take one training step."""
        for _ in self.stages(client):
            pass

    def stages(self, client: ClientId) -> Iterator[Event]:
        """The same, told as it goes. Whoever iterates decides when it goes on."""
        yield from self._walked([client], self._training(Begin(self.moment.round)))
        aside = self.moment.phase.aside
        if aside is not None:
            begin = BeginAside(self.moment.round)
            with self.moment.counting_as(aside.phase.name):
                walk = _Walk(begin, self.topology.training.turns, _manner(aside.phase.gradients))
                for _ in self._walked([client], walk):
                    pass

    def together(self, clients: Sequence[ClientId]) -> None:
        """Let a cohort take one step on the concatenation of its batches."""
        for _ in self._walked(clients, self._training(Begin(self.moment.round))):
            pass

    def abandon(self, client: ClientId) -> None:
        """Let a client drop out after its first packet: what crossed is counted, nobody learns."""
        turns = self.topology.training.turns_before_dropout
        manner: Manner = "abandon" if self.moment.phase.gradients else "infer"
        walk = _Walk(Abandon(self.moment.round), turns, manner)
        for _ in self._walked([client], walk):
            pass

    def outputs(self, client: ClientId, probe: Probing) -> Tensor:
        """A client's outputs for what it is probed with; nobody learns."""
        return self.pool.ask(client, Predict(*self._probed(client, self._read(probe))))

    def note(self, client: ClientId, probe: Probing) -> None:
        """The same, of a client that keeps its outputs to itself."""
        self.pool.ask(client, Note(*self._probed(client, self._read(probe))))

    def write(self, client: ClientId, split: str, round_number: int) -> None:
        """Have a client that keeps its texts to itself write some, pass by pass."""
        self._sessions += 1
        begin = Write(split, round_number, self._sessions, self.reading)
        packets, leg = self._probed(client, begin)
        while packets:
            packets, leg = self._probed(client, WriteOn(packets, leg))
        self.server.end.sessions.close(client, begin.session)

    def _read(self, probe: Probing) -> Probing:
        return replace(probe, reading=self.reading)

    def _probed(self, client: ClientId, probe: Call[Packets]) -> tuple[Packets, Leg]:
        """What comes back to a client that is probed, and the leg that it comes on."""
        turns = self.topology.inference.turns
        manner: Manner = "skip" if self.reading == WITHOUT_TRUNK else "infer"
        crossed = self._crossed(client, _Walk(probe, turns[:-1], manner))
        return tuple(packet for packet in crossed if packet.leg in turns[-1].takes), turns[-1].leg

    @contextmanager
    def session(self, client: ClientId) -> Iterator[int]:
        """The number of a new session, which both sides have forgotten when the context ends."""
        self._sessions += 1
        number = self._sessions
        try:
            yield number
        finally:
            self.pool.tell(client, CloseSession(number))
            self.server.end.sessions.close(client, number)

    @contextmanager
    def read_as(self, reading: str) -> Iterator[None]:
        """A context whose outputs are those of a control."""
        before, self.reading = self.reading, reading
        try:
            yield
        finally:
            self.reading = before

    def exposed(self, client: ClientId, expose: Expose, until: Leg | None = None) -> list[Packet]:
        """What would cross for a batch that attacks are judged by; nobody learns.

        `until` is the last leg of the client's that is wanted; None: those that a step begins with.
        """
        every = self.topology.training.turns
        last = (
            0 if until is None else next(n for n, turn in enumerate(every) if until in turn.sends)
        )
        turns = every[: last + 1]
        return self._crossed(client, _Walk(expose, turns, "infer", ExposeAnswer))

    def reports(self, clients: Sequence[ClientId]) -> dict[ClientId, dict[str, float]]:
        """The sums of clients' steps this round, from whoever computed their losses."""
        own = self.pool.all(clients, ReportRound())
        return {client: self.server.report(client) | report for client, report in own.items()}

    def announce(self, clients: Sequence[ClientId], *, counted: bool) -> None:
        """Tell every client what the methods broadcast; once per run it is counted."""
        announced = self.server.announce()
        tensors = tuple(tensor for message in announced for tensor in message)
        if counted and tensors:
            for client in clients:
                self.wire.carry(Packet(client, Leg.BROADCAST, 0, 0, tensors))
        self.pool.all(clients, Hear(announced))

    def hand_over(self, client: ClientId) -> Packet | None:
        """Bring what the clients share from its holder to `client`, if that is another; what it
        was sent.
        """
        holder, self.holder = self.holder, client
        if holder is None or holder == client:
            return None
        packet = self.pool.ask(holder, HandOver(self.moment.round))
        if not packet.tensors:
            return None
        carried = self.wire.carry(packet, to=client)
        self.pool.tell(client, Receive(carried))
        return carried

    def bring_from(self, earlier: ClientId | None) -> None:
        """Have whoever trained last hold what an earlier holder has, uncounted."""
        if earlier is None or self.holder is None or earlier == self.holder:
            return
        packet = self.pool.ask(earlier, HandOver(0))
        if packet.tensors:
            self.pool.ask(self.holder, Receive(packet))

    def settle(self, clients: Sequence[ClientId]) -> None:
        """Bring what is handed round to all who are about to be evaluated with it, uncounted."""
        others = [client for client in clients if client != self.holder]
        if others and self.holder is not None:
            packet = self.pool.ask(self.holder, HandOver(0))
            if packet.tensors:
                self.pool.all(others, Receive(packet))

    def _training(self, begin: Call[Packets]) -> _Walk:
        return _Walk(begin, self.topology.training.turns, _manner(self.moment.phase.gradients))

    def _crossed(self, client: ClientId, walk: _Walk) -> list[Packet]:
        return [event for event in self._walked([client], walk) if isinstance(event, Packet)]

    def _walked(self, clients: Sequence[ClientId], walk: _Walk) -> Iterator[Event]:
        """Turn after turn, until nothing more is sent."""
        sent: dict[ClientId, Packets] = {}
        arrived: dict[ClientId, Packets] = {}
        for turn in walk.turns:
            if sent:
                yield turn
            self._at = clients[0], turn.leg
            if not turn.by_client:
                sent = self.server.answer(arrived, turn, walk.manner)
            elif not sent:
                sent = self._ask(dict.fromkeys(clients, walk.begin), turn)
            else:
                calls = {c: walk.proceed(packets, turn.leg) for c, packets in arrived.items()}
                sent = self._ask(calls, turn)
            if not any(sent.values()):
                break
            arrived = {}
            for packets in zip(*sent.values(), strict=True):  # leg by leg
                for packet in packets:
                    carried = self.wire.carry(packet)
                    arrived[packet.client] = (*arrived.get(packet.client, ()), carried)
                    yield carried
        self._at = None
        self.server.forget(clients[0])

    def _ask(self, calls: Mapping[ClientId, Call[Packets]], turn: Turn) -> dict[ClientId, Packets]:
        if len(calls) > 1:
            return self.pool.each(calls)
        ((client, call),) = calls.items()
        if turn.sends:
            return {client: self.pool.ask(client, call)}
        self.pool.tell(client, call)
        return {}

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A context in which whatever is thrown is told with round, client, leg and cause."""
        try:
            yield
        except SimsplitError:
            raise
        except ClientError as error:  # which says where on a host it came from, if on one
            raise RunFailedError(f"round {self.moment.round}, {error}") from (
                error.__cause__ or error
            )
        except Exception as error:
            if self._at is None:
                raise  # an observer's, say: no side of the cut had a part in it
            client, leg = self._at
            where = f"round {self.moment.round}, client {client}, leg {leg} (at the server)"
            raise RunFailedError(f"{where}: {type(error).__name__}: {error}") from error


def _manner(gradients: bool) -> Manner:
    """A phase whose gradients stay with clients leaves the server as it is."""
    return "train" if gradients else "infer"
