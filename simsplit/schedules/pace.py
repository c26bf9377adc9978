"""The simulated seconds that each client has been busy in a round, to know which are late.

Only a client's own computing and sending count, not its waiting for others. `Pace` is a tap of the
wire: it knows of a step what packets show.
"""

from collections import defaultdict
from collections.abc import Mapping

from simsplit.network.timing import Clock
from simsplit.packets import ClientId, Packet


class RoundPace:
    """Each client's own seconds since the round began, against a deadline if there is one."""

    def __init__(
        self, clock: Clock | None, *, deadline_s: float | None = None, skips: bool = False
    ) -> None:
        self.clock, self.deadline_s = clock, deadline_s
        self.skips = skips and deadline_s is not None
        """Whether late clients take no further step."""
        self.spent_s: dict[ClientId, float] = defaultdict(float)

    def restart(self, spent_s: Mapping[ClientId, float] | None = None) -> None:
        """Begin a round; `spent_s` has the seconds of it that were observed elsewhere."""
        self.spent_s.clear()
        self.spent_s.update(spent_s or {})

    def is_late(self, client: ClientId) -> bool:
        """Tell whether a client is past the deadline."""
        return self.deadline_s is not None and self.spent_s[client] > self.deadline_s

    def stops(self, client: ClientId) -> bool:
        """Tell whether a client takes no further step."""
        return self.skips and self.is_late(client)

    def observe(self, packet: Packet) -> None:
        """Add the time of a packet, and of the computing behind it."""
        assert self.clock is not None, "a deadline without network is refused"
        self.spent_s[packet.client] += self.clock.compute_own_s(packet)

    def receive(self, client: ClientId, packet: Packet) -> None:
        """Add the time that a client takes to receive a hand-over."""
        if self.clock is not None:
            self.spent_s[client] += self.clock.rates[client].compute_received_s(1, packet.nbytes)
