"""How long each client has been busy in a round, in simulated seconds: who is late.

Only its own computing and sending count; that it waits for others is not its fault. A tap: what it
knows of a step it reads off the packets.
"""

from collections import defaultdict
from collections.abc import Mapping

from simsplit.network.timing import Clock
from simsplit.packets import ClientId, Packet


class Pace:
    """Each client's own seconds since the round began, against a deadline if there is one."""

    def __init__(
        self, clock: Clock | None, *, deadline_s: float | None = None, skips: bool = False
    ) -> None:
        self.clock, self.deadline_s = clock, deadline_s
        self.skips = skips and deadline_s is not None
        """Whether who is late stops."""
        self.spent_s: dict[ClientId, float] = defaultdict(float)

    def restart(self, spent_s: Mapping[ClientId, float] | None = None) -> None:
        """A round begins; `spent_s` is what of it was observed elsewhere."""
        self.spent_s.clear()
        self.spent_s.update(spent_s or {})

    def late(self, client: ClientId) -> bool:
        """Whether a client is past the deadline."""
        return self.deadline_s is not None and self.spent_s[client] > self.deadline_s

    def stops(self, client: ClientId) -> bool:
        """Whether a client takes no further step."""
        return self.skips and self.late(client)

    def observe(self, packet: Packet) -> None:
        """Add what a packet takes, and the computing that belongs to it."""
        assert self.clock is not None, "a deadline without network is refused"
        self.spent_s[packet.client] += self.clock.own_s(packet)

    def receive(self, client: ClientId, packet: Packet) -> None:
        """Add what it takes a client to receive another's hand-over."""
        if self.clock is not None:
            self.spent_s[client] += self.clock.rates[client].received_s(1, packet.nbytes)
