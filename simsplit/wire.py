"""The only crossing: every packet between a client and the server goes through `Wire.carry`.

Here it is measured (bytes counted from the tensors, by round, client, phase and leg) and shown to
whoever watches. A tap sees exactly what a server-side observer could see: packets. It must not keep
a packet's tensors without cloning them, since a hand-over's are live.
"""

from collections.abc import Sequence
from typing import Protocol

from simsplit.packets import ClientId, Leg, Packet
from simsplit.phases import EVALUATE, Moment

WireKey = tuple[int, ClientId, str, Leg]
Counts = dict[WireKey, list[int]]
"""Packets and bytes that were sent, by round, client, phase and leg; and of hand-overs how many of
each the client received, which its link takes time for and no total counts again."""


RECEIVED = ("received_packets", "received_bytes")
"""Columns of the `wire` table where clients hand on what they share."""


class Tap(Protocol):
    """Something that observes the wire."""

    def observe(self, packet: Packet) -> None:
        """See a packet on its way."""


class Forger(Protocol):
    """An active server, which changes what it sends."""

    def answer(self, packet: Packet) -> Packet:
        """The packet to send instead."""


class Wire:
    """Carries packets, counts their bytes, and shows them to taps."""

    def __init__(self, taps: Sequence[Tap] = ()) -> None:
        self.taps = list(taps)
        self.forger: Forger | None = None
        self.moment = Moment()
        """Round and phase that packets are counted under."""
        self._counts: Counts = {}
        self.up = 0
        """Bytes sent towards the server (or the next client) so far."""
        self.down = 0
        """Bytes sent towards clients so far."""

    def carry(self, packet: Packet, to: ClientId | None = None) -> Packet:
        """Count one packet, show it, deliver it; `to` is the client that a hand-over is for."""
        if self.forger is not None:
            packet = self.forger.answer(packet)
        nbytes = packet.nbytes
        key = (packet.round, packet.client, self.moment.counted_as, packet.leg)
        self._add(key, (1, nbytes, 0, 0))
        if to is not None:
            self._add((packet.round, to, self.moment.counted_as, packet.leg), (0, 0, 1, nbytes))
        for tap in self.taps:
            tap.observe(packet)
        return packet

    def take(self) -> Counts:
        """What was counted since the last reading, for another wire to absorb."""
        taken, self._counts = self._counts, {}
        return taken

    def absorb(self, counts: Counts) -> None:
        """Add what a wire elsewhere counted."""
        for key, more in counts.items():
            self._add(key, more)

    def _add(self, key: WireKey, more: Sequence[int]) -> None:
        count = self._counts.get(key)
        if count is None:
            self._counts[key] = list(more)
            return
        for place, number in enumerate(more):
            count[place] += number

    def drain(self) -> list[dict[str, object]]:
        """The rows counted since the last call, in the order of their first packet."""
        rows: list[dict[str, object]] = []
        for (round_number, client, phase, leg), counts in self.take().items():
            packets, nbytes, *received = counts
            if phase != EVALUATE:
                self.up += nbytes if leg.up else 0
                self.down += 0 if leg.up else nbytes
            row: dict[str, object] = {"round": round_number, "client": client, "phase": phase}
            row |= {"leg": str(leg), "packets": packets, "bytes": nbytes}
            if any(received):
                row |= dict(zip(RECEIVED, received, strict=True))
            rows.append(row)
        return rows
