"""The bounds of a run: what each side may send the other. Either side may be hostile.

They are made once, from scenario, topology and methods, and from the samples that the clients have.
Each answer and each request is held against them in one place, before it is used.
"""

import math
from collections.abc import Sequence
from typing import Any

from simsplit.assembly.ownership import Ownership
from simsplit.deploy.call_codecs import PACKETS, get_answer_codec
from simsplit.deploy.figure_bounds import FigureBounds, Holdings
from simsplit.deploy.frames import MOST_COUNT
from simsplit.deploy.packet_bounds import PacketBounds
from simsplit.deploy.weight_bounds import WeightBounds, is_power
from simsplit.errors import ProtocolError
from simsplit.evaluation.writing import FIRST_STEP
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties import calls
from simsplit.parties.calls import Call
from simsplit.phases import Phase
from simsplit.protocol import Protocol
from simsplit.protocols import CARRIED

WIDEST = 8
"""Most bytes of one value."""
ROOM = 2**20
"""Bytes that a frame may have beside its tensors."""


class Bounds:
    """The bounds of one run."""

    def __init__(self, owners: Ownership, holdings: Holdings | None = None) -> None:
        """Make the bounds; without `holdings` nothing is known of the clients' samples."""
        self.scenario = scenario = owners.scenario
        self.owners, self.holdings = owners, holdings or Holdings()
        self.clients = tuple(self.holdings.private) or range(scenario.clients.count)
        """The clients that are known; all if none is."""
        self.packets, self.weights = PacketBounds(owners), WeightBounds(owners, self.clients[0])
        own = scenario.parties if scenario.has_own_methods else ()
        self._of_parties = {party: PacketBounds(owners, party) for party in own}
        """The bounds of what each party's own methods make."""
        self.figures = FigureBounds(
            scenario,
            self.holdings,
            classes=self.packets.labels,
            client_scores=owners.topology.tail_with_client,
            reader=scenario.reader,
        )
        self.hands_on = scenario.shares and scenario.aggregation.kind == "none"
        """Whether clients hand weights to each other; these are sealed against the server."""

    def get_packets(self, client: ClientId) -> PacketBounds:
        """Return the bounds of a client's packets."""
        return self._of_parties.get(client, self.packets)

    @property
    def most_bytes(self) -> int:
        """The most bytes of a frame from or to the clients that are known, or to any."""
        packets, depths = self.packets, self.owners.depths
        of_each_cut = {depths.get_place(client): client for client in self.clients}.values()
        messages = max(1, packets.stacks[0].count_messages) * self.scenario.servers
        bounded = [(packets, each) for each in of_each_cut]
        bounded += [(each, party) for party, each in self._of_parties.items()]
        values = max(math.prod(shape) for by, each in bounded for shape in by.get_shapes(each))
        of_step = packets.rows * values * messages * 4  # methods may stack rows, and send beside
        of_step += math.prod(packets.adapters) * messages if packets.adapters else 0
        # With `handover: state`, an optimizer's moments travel beside the weights.
        slots = 1 + self.scenario.train.client.slots
        weights = [self.weights.get_named(each).values() for each in of_each_cut]
        of_weights = max(sum(tensor.numel() for tensor in each) for each in weights) * (slots + 1)
        return WIDEST * max(of_step, of_weights) + ROOM

    def get_protocol(self, client: ClientId) -> Protocol:
        """Return the protocol of a client's steps."""
        crossings, has_labels = self.scenario.crossings, self.owners.has_labels(client)
        return crossings.select_protocols(has_labels=has_labels)[0]

    def check(self, packet: Packet, sent: Packet | None = None, *, by_client: bool) -> None:
        """Raise ProtocolError if a packet, which answers `sent`, does not fit the run."""
        if packet.leg not in CARRIED:
            self.get_packets(packet.client).check(packet, sent, by_client=by_client)
            return
        # An empty hand-over has nothing to seal.
        if by_client and packet.tensors and self.hands_on != (packet.sealed is not None):
            raise ProtocolError(
                "weights that are sealed but must not be, or must be sealed but are not"
            )
        self.weights.check(packet)

    @property
    def start_norm(self) -> float:
        """The largest norm of the shared weights before training; 1 at least."""
        return self.weights.start_norm

    def check_handed(self, packet: Packet, steps: int, power: object, margin: float) -> None:
        """Raise ProtocolError unless an opened hand-over fits the run, and its seal's header.

        The header names the `steps` of all clients that it includes, and the `power` of two below
        which its largest norm lies; by how much the norm may exceed that is `margin`.
        """
        # A round that a detector undoes may leave its moments behind, in simulations too.
        undoes = any(each.response == "rollback" for each in self.scenario.detectors)
        self.weights.check(packet, MOST_COUNT if undoes else steps)
        if not is_power(power) or self.weights.measure(packet) > margin * 2.0**power:
            raise ProtocolError("weights that are larger than their seal names")

    def check_announced(self, client: ClientId, call: calls.Hear) -> None:
        """Raise ProtocolError unless announcements have the forms of the client's methods."""
        made, sent = (
            [[(tensor.dtype, tensor.shape) for tensor in each] for each in announced]
            for announced in (self.owners.get_stacks(client)[1].announce(), call.announced)
        )
        if sent != made:
            raise ProtocolError("announcements that the scenario's methods do not make")

    def check_answer(
        self,
        client: ClientId,
        call: Call[object],
        answer: Any,  # noqa: ANN401 - the call defines the type
        phase: Phase | None,
    ) -> None:
        """Raise ProtocolError unless an answer fits its call; `phase`: None if not known."""
        match call:
            case calls.CountSteps():
                self.figures.check_batches(client, call.source, answer)
            case calls.ReportRound():
                self.figures.check_report(client, phase, answer, self.get_packets(client).stacked)
            case calls.Assess():
                self.figures.check_scores(client, answer)
            case calls.HandOver():
                self._check_packets(client, call, (answer,), phase)
            # By the call: what a client has sent must not decide how it is judged.
            case _ if get_answer_codec(call) is PACKETS:
                if not isinstance(answer, tuple):
                    raise ProtocolError(f"no packets in answer to {type(call).__name__}")
                self._check_packets(client, call, answer, phase)

    def _check_packets(
        self, client: ClientId, call: Call[object], packets: Sequence[Packet], phase: Phase | None
    ) -> None:
        legs = tuple(packet.leg for packet in packets)
        if legs not in self._list_legs(client, call, phase):
            raise ProtocolError(
                f"packets on {', '.join(legs) or 'no leg'} in answer to {type(call).__name__}"
            )
        sent = call.packets[0] if isinstance(call, calls.Proceed) else None
        for packet in packets:
            if packet.client != client or packet.round != _find_round(call, packet):
                raise ProtocolError("a packet of another client or round")
            if not self._is_in_place(packet, call, packets[0]):
                raise ProtocolError("a packet of another step or session")
            self.check(packet, sent, by_client=True)
            if isinstance(call, calls.WriteOn):
                self.get_packets(client).check_going_on(packet, call.packets[0])
            sent = sent or packet

    def _list_legs(
        self, client: ClientId, call: Call[object], phase: Phase | None
    ) -> Sequence[tuple[Leg, ...]]:
        """Return the sequences of legs that may answer a call."""
        turns = [turn for turn in self.get_protocol(client).turns if turn.by_client]
        probed = self.scenario.crossings.inference.turns[0].sends
        match call:
            case calls.HandOver():
                return [(Leg.HANDOVER,)]
            case calls.Probe() | calls.Write():
                return [probed]
            case calls.WriteOn():
                return [probed, ()]
            case calls.Begin() if phase is not None:
                train = self.scenario.train
                sends = turns[0].sends if phase.crosses else ()
                sure = train.accumulate == 1 and not train.draws
                return [sends] if sure else [sends, ()]  # fewer parts, or no sample was drawn
            case calls.Proceed():
                sends = next(turn.sends for turn in turns if turn.leg == call.making)
                # a client that learns without gradients ends its step without an answer
                sure = phase is not None and phase.gradients and phase.interleaved is None
                return [sends] if sure else [sends, ()]
            case _:
                return [turns[0].sends, ()]

    def _is_in_place(self, packet: Packet, call: Call[object], first: Packet) -> bool:
        """Return whether a packet has the step, session and position that answer a call."""
        if isinstance(call, calls.Write):
            at_start = packet.session in (None, call.session) and packet.position == 0
            return at_start and packet.step == FIRST_STEP
        if isinstance(call, calls.WriteOn):
            before = call.packets[0]
            in_session = before.session is not None
            goes_on = packet.position > before.position if in_session else packet.position == 0
            # Without an end, a client could keep the server writing for ever.
            last = FIRST_STEP + self.scenario.evaluate.max_new_tokens - 1
            step = before.step + 1
            return packet.session == before.session and goes_on and packet.step == step <= last
        step = first.step
        if isinstance(call, calls.Proceed):
            step = call.packets[0].step
        elif isinstance(call, calls.Probe):
            step = call.number
        return (packet.step, packet.session, packet.position) == (step, None, 0)


def _find_round(call: Call[object], packet: Packet) -> int:
    """Return the round to which an answer's packet must belong."""
    if isinstance(call, calls.Proceed | calls.WriteOn):
        return call.packets[0].round
    return int(getattr(call, "round", packet.round))
