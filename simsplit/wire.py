"""This module is the only crossing: every packet between client and server goes through the wire.

`Wire.carry` counts a packet's bytes from its tensors, by round, client, phase and leg, and shows it
to taps. A tap sees exactly what a server-side observer could see: packets. It must clone tensors
that it keeps, since a hand-over's tensors are the live weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.phases import EVALUATE, Moment
from simsplit.progress import Observer
from simsplit.rows import WireRow

WireKey = tuple[int, ClientId, str, Leg]
Counts = dict[WireKey, list[int]]
"""Packets and bytes sent, by round, client, phase and leg, and the packets and bytes of hand-overs
that the client received. The latter take time on its link, but no total counts them again."""


RECEIVED = ("received_packets", "received_bytes")
"""Columns of the `wire` table for rows of clients that received a hand-over."""


@dataclass(frozen=True)
class Viewpoint:
    """The place of an observer: the server, past which all packets go, or one client."""

    client: ClientId | None = None
    """The client's number; None: the server."""

    def sees(self, packet: Packet, to: ClientId | None = None) -> bool:
        """Return whether a packet leaves this place or arrives there."""
        return self.client is None or self.client in (packet.client, to)


class Tap(Protocol):
    """An observer of the wire."""

    def observe(self, packet: Packet) -> None:
        """Observe a packet that crosses."""


class SampleRows(Protocol):
    """The samples of packets, which a simulator knows and a deployed server does not."""

    def find(self, packet: Packet, exposed: str) -> tuple[int, ...]:
        """Return the numbers of a packet's samples; empty: they are not known."""

    def take(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of samples by their numbers."""


class WireObserver(Observer):
    """Base class of observers of a run that are shown its packets, too."""

    def follow(self, wire: "Wire", facts: Mapping[str, object], rows: SampleRows | None) -> None:
        """Follow a run's wire from now on; another one, if the run's parts were built anew."""


class Forger(Protocol):
    """An active server, which changes the packets that it sends."""

    def answer(self, packet: Packet) -> Packet:
        """Return the packet to send instead of `packet`."""


class Wire:
    """The wire: it carries packets, counts their bytes and shows them to taps."""

    def __init__(self, taps: Sequence[Tap] = ()) -> None:
        self.taps = list(taps)
        self.seated: list[tuple[Viewpoint, Tap]] = []
        """Observers that see only what passes their place."""
        self.forger: Forger | None = None
        self.moment = Moment()
        """The round and phase under which packets are counted."""
        self._counts: Counts = {}
        self.up = 0
        """Bytes sent in training towards the server or the next client so far."""
        self.down = 0
        """Bytes sent in training towards clients so far."""

    def carry(self, packet: Packet, to: ClientId | None = None) -> Packet:
        """Count a packet, show it to the taps and return it; `to` is a hand-over's receiver."""
        # before counting: taps and counts see the packet that really crosses
        if self.forger is not None:
            packet = self.forger.answer(packet)
        nbytes = packet.nbytes
        phase = self.moment.counted_phase
        self._add((packet.round, packet.client, phase, packet.leg), (1, nbytes, 0, 0))
        if to is not None:
            self._add((packet.round, to, phase, packet.leg), (0, 0, 1, nbytes))
        for tap in self.taps:
            tap.observe(packet)
        for viewpoint, tap in self.seated:
            if viewpoint.sees(packet, to):
                tap.observe(packet)
        return packet

    def count_sent(self, round_number: int, client: ClientId, leg: Leg) -> tuple[int, int]:
        """Return how many of a client's packets crossed on a leg in a round, and their bytes."""
        sent = [
            count
            for (number, owner, _, crossed), count in self._counts.items()
            if (number, owner, crossed) == (round_number, client, leg)
        ]
        return sum(count[0] for count in sent), sum(count[1] for count in sent)

    def take(self) -> Counts:
        """Return and reset the counts, for another wire to absorb."""
        taken, self._counts = self._counts, {}
        return taken

    def absorb(self, counts: Counts) -> None:
        """Add the counts of another wire."""
        for key, more in counts.items():
            self._add(key, more)

    def _add(self, key: WireKey, more: Sequence[int]) -> None:
        count = self._counts.setdefault(key, [0, 0, 0, 0])
        for place, number in enumerate(more):
            count[place] += number

    def drain(self) -> list[WireRow]:
        """Return the rows counted since the last call, in the order of their first packet."""
        rows: list[WireRow] = []
        for (round_number, client, phase, leg), counts in self.take().items():
            packets, nbytes, *received = counts
            if phase != EVALUATE:
                self.up += nbytes if leg.up else 0
                self.down += 0 if leg.up else nbytes
            row = WireRow(round_number, client, phase, leg, packets, nbytes)
            if any(received):
                row.received_packets, row.received_bytes = received
            rows.append(row)
        return rows
