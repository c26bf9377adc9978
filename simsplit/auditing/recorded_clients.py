"""A recorded client answers attackers and judges as a live one does, from a transcript.

Attackers get packets alone. Judges also ask for the truth, which lies elsewhere in a transcript.
Attacks work on a record as they do on a run: they follow training, then recover the targets.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.attacking import Attacking, Judgement
from simsplit.attacking.session_judge import SessionJudge
from simsplit.attacks import AttackConfig, Knows
from simsplit.auditing.grounds import Ground
from simsplit.auditing.recorded_sessions import ChosenSessions, RecordedSessionJudge
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool, Pool
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.machine import find_device
from simsplit.packets import Packet
from simsplit.parties.calls import Call, CountExposures, Expose, HeadWeights, LabelsOf, OwnTokens
from simsplit.parties.feed import TARGETS
from simsplit.phases import EVALUATE, TRAIN, Phase
from simsplit.scenario import Scenario
from simsplit.schedules.exchange import Exchange
from simsplit.wire import Wire

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
        batch = self.testimony.get_batches(expose.split)[expose.number]
        return [replace(packet, round=expose.round) for packet in batch]


class TimeSpentError(Exception):
    """The budget was spent before an attack had ended."""

    def __init__(self, done: float) -> None:
        self.done = done
        super().__init__(f"{done:.0%} done")


@dataclass(frozen=True)
class WireRecord:
    """What was recorded, as attacks get it."""

    testimony: Testimony
    training: Callable[[], Iterable[Packet]]
    """Yields the packets of training, in order."""
    lacks_answers: bool
    """Whether the server's last packet of each step was not recorded. An empty one stands for it,
    by which attacks that follow training see that the step was answered."""
    rounds: int
    """The last recorded round."""


class ReplayedSessions(SessionJudge):
    """The judge of sessions whose packets were recorded: the run's client knows their texts."""

    packets: Batch = ()

    def begin(self, number: int) -> None:
        """Have the run's client write its texts again, beside the recorded packets."""
        super().begin(number)
        assert self.sessions is not None, "they have just been written"
        self.sessions = replace(self.sessions, packets=self.packets)


def _seat_judge(
    scenario: Scenario, data: Prepared, parts: Assembly, testimony: Testimony
) -> SessionJudge:
    """Return the judge of recorded sessions: of a run, or of another program."""
    if testimony.live is None:
        judge = RecordedSessionJudge(scenario, data, parts)
        judge.chosen = testimony.chosen
        return judge
    replayed = ReplayedSessions(scenario, data, parts)
    replayed.packets = testimony.sessions
    return replayed


def attack_record(
    ground: Ground,
    record: WireRecord,
    config: AttackConfig,
    until: float,
    progress: Callable[[str, int, int], None],
) -> Judgement:
    """Let one attack work, and return its scores.

    Raise TimeSpentError if it is not done at the time `until`, of `time.monotonic`.
    """
    # The transcript's offers have been checked in place of the scenario's, which would refuse more.
    scenario = BaseModel.model_copy(ground.scenario, update={"attacks": (config,)})
    data = ground.data
    if Knows.QUERIES in config.threat.knows:
        data = replace(data, auxiliary=ground.pairs)
    pool, live = RecordedClients(record.testimony), ground.parts
    wire, topology = Wire(), live.exchange.topology
    exchange = ReplayedExchange(pool, live.server, wire, topology)
    exchange.testimony = record.testimony
    parts = replace(live, pool=pool, exchange=exchange, wire=wire)
    attacking = Attacking(scenario, parts, data, find_device(scenario.device))
    if config.recovers == "sessions":
        attacking.judges["sessions"] = _seat_judge(scenario, data, parts, record.testimony)
    moment, phase = parts.wire.moment, Phase(TRAIN, record.rounds)

    def report(what: str, done: int, total: int) -> None:
        progress(what, done, total)
        if time.monotonic() > until and done < total:
            raise TimeSpentError(done / total)

    with moment.enter_round(record.rounds, phase):
        if config.threat.follows_training:
            for packet in record.training():
                parts.wire.carry(packet)
                if record.lacks_answers and packet.leg is Leg.SMASHED:
                    parts.wire.carry(packet.answer(Leg.SMASHED_GRAD, ()))
        with moment.count_as(EVALUATE):
            return attacking.judge(record.rounds, report)
