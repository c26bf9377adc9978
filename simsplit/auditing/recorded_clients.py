"""A recorded client answers attackers and judges as a live one does, from a transcript.

Attackers get packets alone. Judges also ask for the truth, which lies elsewhere in a transcript.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.assembly.supplies import TARGETS
from simsplit.auditing.recorded_sessions import ChosenSessions
from simsplit.engine.pool import InlinePool, Pool
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import Call, CountExposures, Expose, HeadWeights, LabelsOf, OwnTokens
from simsplit.schedules.exchange import Exchange

Answer = TypeVar("Answer", covariant=True)
Batch = Sequence[Packet]
"""The packets of one step."""


@dataclass(frozen=True)
class Testimony:
    """What a recorded client has to say, to attackers and to judges."""

    targets: Sequence[Batch]
    """The packets of the targets, step by step."""
    pairs: Sequence[Batch] = ()
    """The packets of samples whose inputs an attacker knows."""
    sessions: Batch = ()
    """The packets in which the run's client wrote texts."""
    chosen: ChosenSessions = field(default_factory=ChosenSessions)
    """The sessions of another program, with their texts."""
    head: Mapping[str, Tensor] = field(default_factory=dict)
    """The weights of the client's head, for upper bounds that know them."""
    live: Pool | None = None
    """The clients of the run that was recorded, whom judges ask for the truth; None: there are
    none, and the transcript has the truth."""

    def get_batches(self, split: str) -> Sequence[Batch]:
        """Return the packets of a split, step by step."""
        return self.targets if split == TARGETS else self.pairs


_OF_JUDGES = (OwnTokens, LabelsOf)


class RecordedClients(InlinePool):
    """Clients that are no longer there; what they can be asked is answered from their record."""

    def __init__(self, testimony: Testimony) -> None:
        super().__init__({})
        self.testimony = testimony

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Answer what attacks and judges ask; raise ProtocolError for anything else."""
        known: Any = None
        if isinstance(call, CountExposures):
            known = len(self.testimony.get_batches(call.split))
        elif isinstance(call, HeadWeights) and self.testimony.head:
            known = dict(self.testimony.head)
        elif isinstance(call, _OF_JUDGES) and self.testimony.live is not None:
            known = self.testimony.live.ask(client, call)
        elif not isinstance(call, OwnTokens):
            raise ProtocolError(f"a transcript has no answer to {type(call).__name__}")
        return cast("Answer", known)


class ReplayedExchange(Exchange):
    """An exchange whose client has been recorded: what it exposes is what has crossed."""

    testimony: Testimony

    def expose(self, client: ClientId, expose: Expose, until: Leg | None = None) -> list[Packet]:
        """Return what has crossed for a batch, as of the round of this exposure."""
        del client, until
        batch = self.testimony.get_batches(expose.split)[expose.number]
        return [replace(packet, round=expose.round) for packet in batch]


def seat_recorded(parts: Assembly, testimony: Testimony) -> Assembly:
    """Return the parts of a run with recorded clients in place of live ones."""
    pool, live = RecordedClients(testimony), parts.exchange
    exchange = ReplayedExchange(pool, parts.server, parts.wire, live.topology)
    exchange.testimony = testimony
    return replace(parts, pool=pool, exchange=exchange)


def replay(parts: Assembly, packets: Iterator[Packet], lacks_answers: bool) -> int:
    """Carry recorded packets of training over a wire, in order, and return their number.

    `lacks_answers`: the server's last packet of a step was not recorded. An empty one stands for
    it, by which attacks that follow training see that the step was answered.
    """
    count = 0
    for packet in packets:
        parts.wire.carry(packet)
        if lacks_answers and packet.leg is Leg.SMASHED:
            parts.wire.carry(packet.answer(Leg.SMASHED_GRAD, ()))
        count += 1
    return count
