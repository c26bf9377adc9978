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
"""Packets and bytes, by round, client, phase and leg."""


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

    def carry(self, packet: Packet) -> Packet:
        """Count one packet, show it, deliver it."""
        if self.forger is not None:
            packet = self.forger.answer(packet)
        nbytes = packet.nbytes
        key = (packet.round, packet.client, self.moment.counted_as, packet.leg)
        count = self._counts.get(key)
        if count is None:
            self._counts[key] = [1, nbytes]
        else:
            count[0] += 1
            count[1] += nbytes
        for tap in self.taps:
            tap.observe(packet)
        return packet

    def take(self) -> Counts:
        """What was counted since the last reading, for another wire to absorb."""
        taken, self._counts = self._counts, {}
        return taken

    def absorb(self, counts: Counts) -> None:
        """Add what a wire elsewhere counted."""
        for key, (packets, nbytes) in counts.items():
            count = self._counts.setdefault(key, [0, 0])
            count[0] += packets
            count[1] += nbytes

    def drain(self) -> list[dict[str, object]]:
        """The rows counted since the last call, in the order of their first packet."""
        rows: list[dict[str, object]] = []
        for (round_number, client, phase, leg), (packets, nbytes) in self.take().items():
            if phase != EVALUATE:
                self.up += nbytes if leg.up else 0
                self.down += 0 if leg.up else nbytes
            rows.append(
                {
                    "round": round_number,
                    "client": client,
                    "phase": phase,
                    "leg": str(leg),
                    "packets": packets,
                    "bytes": nbytes,
                }
            )
        return rows
