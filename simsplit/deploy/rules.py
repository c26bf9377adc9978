"""What a deployed client does when it is asked to: what its owner's scenario takes, and no more.

The server may be hostile. Each call is held against the scenario that the client's owner approved:
which phases there are, how many rounds, how many forward passes in each, whose answer is due. What
crosses is checked for its shape. What clients hand on to each other is sealed (see `handing.py`);
what a server averages is taken as it comes: in that clients have to trust it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simsplit.deploy.expected import Expected
from simsplit.errors import ProtocolError
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.packets import ClientId, Packet
from simsplit.parties.calls import (
    Begin,
    BeginAside,
    Call,
    Enter,
    HandOver,
    Hear,
    Note,
    Probe,
    Proceed,
    Receive,
    Write,
    WriteOn,
)
from simsplit.phases import Aside, Phase

MOST_RETURNS = 50
"""How often a client goes back to a checkpoint: each time it sends some batches once more."""


WRITTEN = -1
"""Stands for the texts that are written, among the batches that are evaluated."""


class Rules:
    """Follows what a client has been asked, and refuses what it should not be."""

    def __init__(self, client: ClientId, expected: Expected, batches: dict[str, int]) -> None:
        """`batches` are the client's in a pass over its data, by source."""
        self.client, self.expected, self.batches = client, expected, batches
        scenario, stack = expected.scenario, expected.stacks[0]
        every = {client: batches["private"]}
        rounds = scenario.schedule.count_rounds(every)
        gradients = scenario.gradients_cross
        training = replace(stack.proper(), rounds=rounds, gradients=gradients)
        self.phases = [*stack.plan(rounds), training]
        self.rounds = sum(phase.rounds for phase in self.phases)
        self.returns = 0
        self.back_to(0)

    def back_to(self, round_number: int) -> None:
        """Begin again after a round; ProtocolError if that happens too often."""
        self.returns += 1
        if self.returns > MOST_RETURNS:
            raise ProtocolError(f"the server went back to a checkpoint {MOST_RETURNS} times")
        self.round, self._entered = round_number, False
        self._phase: Phase | None = None
        self._begun = 0
        self._asked: set[Call[object]] = set()
        self._sent: Sequence[Packet] = ()
        self._turn = 0
        self._aside = False
        self._heard = False
        self._marked: int | None = None

    def keep(self, round_number: int) -> None:
        """Whether a checkpoint is due."""
        if round_number < self.round:
            raise ProtocolError(f"to keep round {round_number} after round {self.round}")
        self.round, self._phase = round_number, None

    def mark(self, round_number: int) -> None:
        """Whether a round begins that a detector may have undone."""
        undoes = any(
            each.response == "rollback" and not each.by_turns
            for each in self.expected.scenario.detectors
        )
        if not (undoes and self._entered and self.round < round_number <= self.rounds):
            raise ProtocolError(f"to mark round {round_number}, which nothing can undo")
        self._marked = round_number

    def undo(self, round_number: int) -> None:
        """Whether this round was marked, and is over."""
        if self._marked != round_number or self._turn:
            raise ProtocolError(f"to undo round {round_number}, which was not marked")
        self._marked = None

    def check(self, call: Call[object]) -> None:
        """ProtocolError for a call that training does not take now."""
        checks: dict[type, Callable[[Any], None]] = {
            Enter: self._enter,
            Begin: self._begin,
            BeginAside: self._begin_aside,
            Proceed: self._proceed,
            Probe: self._probe,
            Note: self._note,
            Write: self._write,
            WriteOn: self._write_on,
            Hear: self._hear,
            HandOver: self._share,
            Receive: self._share,
        }
        if (checked := checks.get(type(call))) is not None:
            checked(call)

    def answered(self, call: Call[object], answer: object, *, waiting: bool) -> None:
        """Take note of what the client has sent, and whether it is in the middle of a step."""
        if not waiting:
            self._turn = 0
        if isinstance(call, Begin | BeginAside | Proceed | Probe | Write | WriteOn):
            assert isinstance(answer, tuple), "these calls are answered by packets"
            self._sent = answer

    def _enter(self, call: Enter) -> None:
        phase = call.phase
        if phase not in self.phases:
            raise ProtocolError(f"to enter a phase that the scenario has not ({phase.name[:40]})")
        self._phase, self._entered, self._begun = phase, True, 0
        self._turn, self._sent = 0, ()

    def _begin(self, call: Begin) -> None:
        """The first step after `Enter` begins a later round; others are of the same one."""
        number = call.round
        due = self.round < number <= self.rounds if self._entered else number == self.round
        if self._phase is None or self._turn or not due:
            raise ProtocolError(f"to begin a step of round {number} after one of {self.round}")
        self.round, self._entered = number, False
        self._begun += 1
        most = self._steps(self._phase)
        if self._begun > most:
            raise ProtocolError(f"{self._begun} steps in round {number}; the scenario takes {most}")
        self._turn, self._aside = 1, False

    def _begin_aside(self, call: BeginAside) -> None:
        aside: Aside | None = None if self._phase is None else self._phase.aside
        if aside is None or call.round != self.round or self._turn or self._aside:
            raise ProtocolError("to begin a step aside that the scenario has not")
        self._turn, self._aside = 1, True

    def _steps(self, phase: Phase) -> int:
        """How many steps the client takes in a round of the phase."""
        return self.expected.scenario.schedule.count_local_steps({0: self.batches[phase.source]})[0]

    def _proceed(self, call: Proceed) -> None:
        turns = [turn for turn in self.expected.scenario.crossings.training.turns if turn.by_client]
        if not (self._turn and self._sent):
            raise ProtocolError("to go on with a step that has not begun")
        turn = turns[self._turn]
        self._arrived(call.packets, turn.takes)
        self._turn += 1

    def _arrived(self, packets: Sequence[Packet], takes: Sequence[str]) -> None:
        """What the server sends in answer to what it was sent."""
        if not self._sent:
            raise ProtocolError("an answer to nothing that was sent")
        sent = self._sent[0]
        if tuple(packet.leg for packet in packets) != tuple(takes):
            raise ProtocolError("packets on other legs than the step has now")
        for packet in packets:
            here = (packet.client, packet.round, packet.step, packet.session, packet.position)
            if here != (self.client, sent.round, sent.step, sent.session, sent.position):
                raise ProtocolError("packets of another client, round or step")
            self.expected.check(packet, sent, by_client=False)
        self._sent = ()

    def _write(self, call: Write) -> None:
        if not any(name in GENERATION_METRICS for name in self.expected.scenario.metrics):
            raise ProtocolError("to write texts, which the scenario does not score")
        self._probe(Probe(call.split, call.round, WRITTEN, call.reading))

    def _write_on(self, call: WriteOn) -> None:
        self._note(call)

    def _probe(self, call: Probe) -> None:
        scenario = self.expected.scenario
        due = self.round <= call.round <= self.rounds
        due = due and scenario.evaluate.due(call.round, self.rounds)
        known = call.split in scenario.splits
        known = known and call.reading in ("", *scenario.evaluate.controls)
        if self._turn or not (due and known):
            raise ProtocolError("to evaluate what the scenario does not")
        if call in self._asked:
            raise ProtocolError("to evaluate the same batch twice")
        self._asked.add(call)

    def _note(self, call: Note | WriteOn) -> None:
        last = self.expected.scenario.crossings.inference.turns[-1]
        self._arrived(call.packets, last.takes)

    def _hear(self, call: Hear) -> None:
        del call
        if self._heard:
            raise ProtocolError("to hear announcements twice")
        self._heard = True

    def _share(self, call: HandOver | Receive) -> None:
        if not self.expected.scenario.shares or self._turn:
            raise ProtocolError("to share what the scenario does not")
        if isinstance(call, Receive):
            self.expected.check(call.packet, by_client=False)
