"""Attacks work on a record as they do on a run: they follow training, then recover the targets."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import BaseModel

from simsplit.assembly import Assembly
from simsplit.attacking import Attacking, Judgement
from simsplit.attacking.session_judge import SessionJudge
from simsplit.attacks import AttackConfig, Knows
from simsplit.auditing.grounds import Ground
from simsplit.auditing.recorded_clients import Batch, Testimony, replay, seat_recorded
from simsplit.auditing.recorded_sessions import RecordedSessionJudge
from simsplit.data import Prepared
from simsplit.machine import find_device
from simsplit.packets import Packet
from simsplit.phases import EVALUATE, TRAIN, Phase
from simsplit.scenario import Scenario
from simsplit.wire import Wire


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
    """Whether the server's last packet of each step was not recorded."""
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
    """Let one attack work on a record, and return its scores.

    Raise TimeSpentError if it is not done at the time `until`, of `time.monotonic`.
    """
    # The transcript's offers have been checked in place of the scenario's, which would refuse more.
    scenario = BaseModel.model_copy(ground.scenario, update={"attacks": (config,)})
    data = ground.data
    if Knows.QUERIES in config.threat.knows:
        data = replace(data, auxiliary=ground.pairs)
    parts = seat_recorded(replace(ground.parts, wire=Wire()), record.testimony)
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
            replay(parts, iter(record.training()), record.lacks_answers)
        with moment.count_as(EVALUATE):
            return attacking.judge(record.rounds, report)
