"""The choreography of a step: one walk over a topology's protocol, in every way that it is walked.

A step in turn, of a cohort at once, as events come, abandoned half-way or without learning
(evaluation, texts that are continued, exposure to attacks) is the same walk, with other calls to
the clients and another manner of the server. Nothing here knows which legs there are.

An exception of a client, a method or the server in the middle of a step becomes one message that
names the round, the client and the leg.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import zip_longest

from torch import Tensor

from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.detectors import Sensor
from simsplit.engine.pool import ClientError, Pool, StepWatch
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet, Packets
from simsplit.parties.calls import (
    Abandon,
    Begin,
    BeginInterleaved,
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
"""An event of a walk: a packet that sets out, or the turn that is about to be taken."""
Probing = Probe | ProbeTexts | ContinueTexts
# The itertools recipe to run a generator to its end: fast, and no packet is kept alive.
_exhaust: Callable[[Iterator[object]], None] = deque[object](maxlen=0).extend
Proceeding = Callable[[Packets, Leg], Call[Packets]]
"""Makes the call to a client that has received packets and is to make a leg."""


@dataclass(frozen=True)
class _Walk:
    """The calls, the turns and the manner of one way of walking."""

    begin: Call[Packets]
    turns: Sequence[Turn]
    manner: Manner
    proceed: Proceeding = Proceed


@dataclass(eq=False)
class Exchange:
    """Steps of clients with the server, over one wire."""

    pool: Pool
    server: Server
    wire: Wire
    topology: Topology
    parts: int = 1
    """The number of parts in which each mini-batch crosses."""
    _: KW_ONLY
    parties: Sequence[ClientId] = ()
    """The clients that take part in every pass, each with columns of its own; empty: a pass is of
    one client."""
    names: ClientNames = field(default=NO_NAMES, init=False)
    """What messages call the clients."""
    sensor: Sensor | None = field(default=None, init=False)
    """The tap of the wire by which detectors see."""
    watch: StepWatch | None = field(default=None, init=False)
    """The watch over the trunk, where clients are remote."""
    holder: ClientId | None = field(default=None, init=False)
    """The client that trained last, and so holds what is handed from client to client."""
    reading: str = field(default="", init=False)
    """The control whose outputs are asked for; empty: none."""
    _sessions: int = field(default=0, init=False)
    _at: tuple[ClientId, Leg] | None = field(default=None, init=False)
    """Whose walk is under way, and on which leg it is."""

    def __post_init__(self) -> None:
        self.moment = self.wire.moment

    def step(self, client: ClientId) -> None:
        """Let one client take one training step."""
        walk = self._plan_training()
        if self.parts == 1:
            _exhaust(self._walk([client], walk))
        else:
            self._step_in_parts(client, walk)
        self._step_interleaved(client)

    def step_by_events(self, client: ClientId) -> Iterator[Event]:
        """Let one client take one training step; the caller decides when each event happens."""
        yield from self._walk(self.parties or [client], self._plan_training())
        self._step_interleaved(client)

    def step_together(self, clients: Sequence[ClientId], number: int | None = None) -> None:
        """Let a cohort take one step on all of its batches: on their rows, or on their columns.

        `number` is that of the batch; None: each client's next one.
        """
        _exhaust(self._walk(clients, self._plan_training(number)))

    def abandon(self, client: ClientId, number: int | None = None) -> None:
        """Let a client drop out after its first packet: what crossed is counted, nobody learns."""
        turns = self.topology.training.turns_before_dropout
        if self.parties:
            # The server waits for the other parties, and does nothing with a single packet.
            turns = turns[:1]
        manner: Manner = "abandon" if self.moment.phase.gradients else "infer"
        _exhaust(self._walk([client], _Walk(Abandon(self.moment.round, number), turns, manner)))

    def predict(self, client: ClientId, probe: Probing) -> Tensor:
        """Return a client's outputs for what it is probed with; nobody learns."""
        probe = replace(probe, reading=self.reading)
        return self.pool.ask(client, Predict(*self._probe(client, probe)))

    def note(self, client: ClientId, probe: Probing) -> None:
        """Probe a client that keeps its outputs to itself."""
        probe = replace(probe, reading=self.reading)
        self.pool.ask(client, Note(*self._probe(client, probe)))

    def write(self, client: ClientId, split: str, round_number: int) -> None:
        """Have a client that keeps its texts to itself write some, pass by pass."""
        self._sessions += 1
        begin = Write(split, round_number, self._sessions, self.reading)
        packets, leg = self._probe(client, begin)
        while packets:
            packets, leg = self._probe(client, WriteOn(packets, leg))
        self.server.end.sessions.close(client, begin.session)

    def _probe(self, client: ClientId, probe: Call[Packets]) -> tuple[Packets, Leg]:
        """Probe a client, and return what comes back to it and the leg that it comes on."""
        turns = self.topology.inference.turns
        manner: Manner = "skip" if self.reading == WITHOUT_TRUNK else "infer"
        # The last turn is the client's: it makes outputs of the packets, and sends nothing.
        crossed = self._collect_packets(client, _Walk(probe, turns[:-1], manner))
        return tuple(packet for packet in crossed if packet.leg in turns[-1].takes), turns[-1].leg

    @contextmanager
    def open_session(self, client: ClientId) -> Iterator[int]:
        """Number a new session, which both sides forget when the context ends."""
        self._sessions += 1
        number = self._sessions
        try:
            yield number
        finally:
            self.pool.tell(client, CloseSession(number))
            self.server.end.sessions.close(client, number)

    @contextmanager
    def use_reading(self, reading: str) -> Iterator[None]:
        """Open a context whose outputs are those of a control."""
        before, self.reading = self.reading, reading
        try:
            yield
        finally:
            self.reading = before

    def expose(self, client: ClientId, expose: Expose, until: Leg | None = None) -> list[Packet]:
        """Collect what would cross for a batch that attacks are judged by; nobody learns.

        `until` is the last wanted leg; None: the legs that a step begins with. Up to a gradient of
        the server's, the trunk runs as in training, and keeps no trace.
        """
        every = self.topology.training.turns
        last = (
            0 if until is None else next(n for n, turn in enumerate(every) if until in turn.sends)
        )
        turns = every[: last + 1]
        replies = until is not None and not until.up and until in self.topology.training.gradients
        manner: Manner = "abandon" if replies else "infer"
        crossed = self._collect_packets(client, _Walk(expose, turns, manner, ExposeAnswer))
        if replies:
            self.server.learner.clear()
            for each in self.parties or [client]:
                self.server.report(each)  # a loss that the server has counted is dropped
        return crossed

    def collect_reports(self, clients: Sequence[ClientId]) -> dict[ClientId, dict[str, float]]:
        """Collect the sums of clients' steps this round, from the side that computed the losses."""
        reports = self.pool.ask_all(clients, ReportRound())
        for client, report in reports.items():
            with self.pool.work_on({client: ()}):
                reports[client] = self.server.report(client) | report
        return reports

    def announce(self, clients: Sequence[ClientId], *, counted: bool) -> None:
        """Send every client what its methods broadcast; once per run it is counted."""
        if self.parties:  # each has methods of its own
            calls = {client: Hear(self.server.announce(client)) for client in clients}
            for client, call in calls.items() if counted else ():
                self._carry_announced([client], call)
            self.pool.ask_each(calls)
            return
        call = Hear(self.server.announce(clients[0] if clients else 0))
        if counted:
            self._carry_announced(clients, call)
        self.pool.announce(clients, call)

    def _carry_announced(self, clients: Sequence[ClientId], call: Hear) -> None:
        tensors = tuple(tensor for message in call.announced for tensor in message)
        for client in clients if tensors else ():
            self.wire.carry(Packet(client, Leg.BROADCAST, 0, 0, tensors))

    def hand_over(self, client: ClientId) -> Packet | None:
        """Bring what the clients share from its holder to `client`, if that is another, and return
        the packet.
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
        """Bring what an earlier holder has to the client that trained last, uncounted."""
        if earlier is None or self.holder is None or earlier == self.holder:
            return
        packet = self.pool.ask(earlier, HandOver(0))
        if packet.tensors:
            self.pool.ask(self.holder, Receive(packet))

    def settle(self, clients: Sequence[ClientId]) -> None:
        """Bring what is handed round to the clients that are about to be evaluated, uncounted."""
        others = [client for client in clients if client != self.holder]
        if others and self.holder is not None:
            packet = self.pool.ask(self.holder, HandOver(0))
            if packet.tensors:
                self.pool.ask_all(others, Receive(packet))

    def _plan_training(self, number: int | None = None) -> _Walk:
        # A phase without its gradients leaves the server unchanged.
        manner: Manner = "train" if self.moment.phase.gradients else "infer"
        return _Walk(Begin(self.moment.round, number), self.topology.training.turns, manner)

    def _step_in_parts(self, client: ClientId, walk: _Walk) -> None:
        """Let a mini-batch cross part by part; both sides learn from all of them at the end."""
        learns = walk.manner == "train"
        # A step that was given up may have left gradients of its first parts.
        self.server.learner.clear()
        for _ in range(self.parts):
            manner: Manner = "gather" if learns else walk.manner
            _exhaust(self._walk([client], replace(walk, manner=manner)))
        if learns:
            with self.pool.work_on({client: ()}):
                self.server.learn_now()
                if self.watch is not None:
                    self.watch.check_step({client: ()})

    def _step_interleaved(self, client: ClientId) -> None:
        """Let a client take the step that the phase has between its own, if one is due."""
        interleaved = self.moment.phase.interleaved
        if interleaved is None:
            return
        manner: Manner = "train" if interleaved.phase.gradients else "infer"
        walk = _Walk(BeginInterleaved(self.moment.round), self.topology.training.turns, manner)
        with self.moment.count_as(interleaved.phase.name):
            _exhaust(self._walk([client], walk))

    def _collect_packets(self, client: ClientId, walk: _Walk) -> list[Packet]:
        events = self._walk(self.parties or [client], walk)
        return [event for event in events if isinstance(event, Packet) and event.client == client]

    def _walk(self, clients: Sequence[ClientId], walk: _Walk) -> Iterator[Event]:
        """Take turn after turn, until nothing more is sent."""
        sent: dict[ClientId, Packets] = {}
        arrived: dict[ClientId, Packets] = {}
        for turn in walk.turns:
            if sent:
                yield turn
            self._at = clients[0], turn.leg
            if not turn.by_client:
                sent = self._answer(arrived, turn, walk.manner)
            elif not sent:
                sent = self._ask(dict.fromkeys(clients, walk.begin), turn)
            else:
                calls = {c: walk.proceed(packets, turn.leg) for c, packets in arrived.items()}
                sent = self._ask(calls, turn)
            # Nothing is sent for a drawn batch without a sample; others of the cohort go on.
            sent = {client: packets for client, packets in sent.items() if packets}
            # A phase whose gradients do not cross ends before the protocol does.
            if not sent:
                break
            arrived = {}
            with self.pool.work_on(sent):
                # A party without labels sends fewer packets than the one that has them.
                by_legs = list(zip_longest(*sent.values()))
            for packets in by_legs:
                for packet in filter(None, packets):
                    # Where clients are remote, the sender is at fault if its packet cannot cross.
                    with self.pool.work_on({packet.client: (packet,)}):
                        carried = self.wire.carry(packet)
                    before = arrived.get(packet.client)
                    arrived[packet.client] = (carried,) if before is None else (*before, carried)
                    yield carried
        self._at = None
        # A walk may end before the server's last turn; what it keeps for that turn is dropped.
        self.server.forget(clients)

    def _answer(
        self, arrived: dict[ClientId, Packets], turn: Turn, manner: Manner
    ) -> dict[ClientId, Packets]:
        """Let the server take a turn; where clients are remote, check what they have done to it."""
        with self.pool.work_on(arrived):
            answers = self.server.answer(arrived, turn, manner)
            if self.watch is not None:
                if turn.last and manner == "train":
                    self.watch.check_step(arrived)
                self.watch.check_answers(answers, arrived)
        return answers

    def _ask(self, calls: Mapping[ClientId, Call[Packets]], turn: Turn) -> dict[ClientId, Packets]:
        if len(calls) > 1:
            return self.pool.ask_each(calls)
        ((client, call),) = calls.items()
        if turn.sends:
            return {client: self.pool.ask(client, call)}
        # Nothing comes back, so nobody needs to wait until the client has learned.
        self.pool.tell(client, call)
        return {}

    @contextmanager
    def name_failures(self) -> Iterator[None]:
        """Open a context in which an exception names its round, client, leg and cause."""
        try:
            yield
        except SimsplitError:
            raise
        except ClientError as error:  # its cause says where on a host it came from
            who = self.names.describe(error.client)
            raise RunFailedError(
                f"round {self.moment.round}, {who}, {error.where}: {error.cause}"
            ) from (error.__cause__ or error)
        except Exception as error:
            if self._at is None:
                raise  # an observer's, for example: no side of the cut had a part in it
            client, leg = self._at
            who = self.names.describe(client)
            where = f"round {self.moment.round}, {who}, leg {leg} (at the server)"
            raise RunFailedError(f"{where}: {type(error).__name__}: {error}") from error
