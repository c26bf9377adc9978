"""A deployed client does what its owner's scenario needs, and no more: the server may be hostile.

Each call is checked against the scenario that the client's owner approved: its phases, its rounds,
the number of forward passes in each, and whose answer is due. Packets are checked for their shapes.
Weights that clients hand to each other are sealed (see `handovers.py`). Weights that a server
averages cannot be checked: in this, clients must trust it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.call_codecs import PACKETS, get_answer_codec
from simsplit.errors import ProtocolError
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties import calls
from simsplit.parties.calls import Call
from simsplit.phases import Phase
from simsplit.running.checkpointing import CLIENT_LOSSES

LEAST_RETURNS = 50
"""Returns to a checkpoint that a client always allows: after each it sends some batches again.

More packets of the same batches could show a hostile server more of the samples. So the most that
it allows is what honest servers may need: as many as all clients may be lost.
"""

WRITTEN = -1
"""The batch number that stands for generated texts, among the batches of an evaluation."""


class Rules:
    """The state of a client's run, by which calls are allowed or refused."""

    def __init__(self, client: ClientId, bounds: Bounds) -> None:
        self.client, self.bounds = client, bounds
        scenario, stack = bounds.scenario, bounds.get_packets(client).stacks[0]
        batches = np.array([bounds.figures.count_batches(client, "private")])
        rounds = scenario.schedule.count_rounds(batches)
        gradients = scenario.gradients_cross
        training = replace(stack.make_training_phase(), rounds=rounds, gradients=gradients)
        self.phases = [*stack.plan_phases(rounds), training]
        self.rounds = sum(phase.rounds for phase in self.phases)
        self.most_returns = max(LEAST_RETURNS, scenario.clients.count * CLIENT_LOSSES)
        self.returns = -1  # the call below begins the run, and is no return
        self._kept_within: set[int] = set()
        """Checkpoints whose round was not over: they have weights of some of its batches."""
        self.return_to(0)

    def return_to(self, round_number: int) -> None:
        """Return to the end of a round; raise ProtocolError if that happens too often."""
        self.returns += 1
        if self.returns > self.most_returns:
            raise ProtocolError(
                f"the server returned to a checkpoint more than {self.most_returns} times"
            )
        self.round, self._entered = round_number, False
        self._phase: Phase | None = None
        self._steps_begun = 0
        self._probed: set[Call[object]] = set()
        self._sent: Sequence[Packet] = ()
        self._turn = 0
        self._interleaved = False
        self._has_heard = False
        self._marked: int | None = None
        self._reported = 0
        self._exam: tuple[str, str] | None = None
        self._noted: set[int] = set()
        self._probe: calls.Probe | None = None
        self._is_cut_off = round_number in self._kept_within

    def keep(self, round_number: int) -> None:
        """Raise ProtocolError if a checkpoint would be of an earlier round than the client's."""
        # Otherwise the server could go back in this way, and have batches sent again without a
        # return that counts.
        if round_number < self.round:
            raise ProtocolError(f"to keep round {round_number} after round {self.round}")
        self._leave_round()
        self._kept_within.discard(round_number)
        if self._is_cut_off:
            self._kept_within.add(round_number)
        self.round, self._phase = round_number, None

    def mark(self, round_number: int) -> None:
        """Raise ProtocolError unless a round begins that a detector may undo."""
        undoes = any(
            each.response == "rollback" and not each.by_turns
            for each in self.bounds.scenario.detectors
        )
        if not (undoes and self._entered and self.round < round_number <= self.rounds):
            raise ProtocolError(f"to mark round {round_number}, which nothing can undo")
        self._marked = round_number

    def undo(self, round_number: int) -> None:
        """Raise ProtocolError unless this round was marked, and no step is open."""
        if self._marked != round_number or self._turn:
            raise ProtocolError(
                f"to undo round {round_number}, which was not marked or has an open step"
            )
        self._marked = None

    def check(self, call: Call[object]) -> None:
        """Raise ProtocolError for a call that training does not need now."""
        checks: dict[type, Callable[[Any], None]] = {
            calls.Enter: self._check_enter,
            calls.Begin: self._check_begin,
            calls.BeginInterleaved: self._check_begin_interleaved,
            calls.Proceed: self._check_proceed,
            calls.ReportRound: self._check_report,
            calls.Probe: self._check_probe,
            calls.Note: self._check_note,
            calls.Assess: self._check_assess,
            calls.Write: self._check_write,
            calls.WriteOn: self._check_last_arrival,
            calls.Hear: self._check_hear,
            calls.HandOver: self._check_sharing,
            calls.Receive: self._check_sharing,
        }
        if (check := checks.get(type(call))) is not None:
            check(call)

    def note_answer(self, call: Call[object], answer: object, *, waiting: bool) -> None:
        """Note which packets the client has sent, and whether it waits within a step."""
        if not waiting:
            self._turn = 0
        if get_answer_codec(call) is PACKETS:
            assert isinstance(answer, tuple), "these calls are answered by packets"
            self._sent = answer

    def _check_enter(self, call: calls.Enter) -> None:
        phase = call.phase
        if phase not in self.phases:
            raise ProtocolError(
                f"to enter a phase that the scenario does not have ({phase.name[:40]})"
            )
        self._leave_round()
        self._phase, self._entered, self._steps_begun = phase, True, 0
        self._turn, self._sent = 0, ()

    def _check_begin(self, call: calls.Begin) -> None:
        """Check a step: the first one after `Enter` begins a later round, others continue it."""
        number = call.round
        due = self.round < number <= self.rounds if self._entered else number == self.round
        # One step at a time: a second one would replace the batch that the client keeps for the
        # first.
        if self._phase is None or self._turn or not due:
            raise ProtocolError(f"to begin a step of round {number} after one of {self.round}")
        self.round, self._entered = number, False
        self._steps_begun += 1
        most = self.bounds.figures.count_begun(self.client, self._phase)
        # A party is asked for the others' batches of this round, and for no earlier one.
        first = (number - 1) * most
        batches = range(first, first + most) if self.bounds.scenario.parties else (None,)
        if call.batch not in batches:
            raise ProtocolError(f"to begin batch {call.batch} in round {number}")
        if self._steps_begun > most:
            raise ProtocolError(
                f"{self._steps_begun} steps in round {number}; the scenario allows {most}"
            )
        self._turn, self._interleaved = 1, False

    def _check_begin_interleaved(self, call: calls.BeginInterleaved) -> None:
        has_interleaved = self._phase is not None and self._phase.interleaved is not None
        if not has_interleaved or call.round != self.round or self._turn or self._interleaved:
            raise ProtocolError("to begin an interleaved step that the scenario does not have")
        self._turn, self._interleaved = 1, True

    def _check_proceed(self, call: calls.Proceed) -> None:
        turns = [turn for turn in self.bounds.get_protocol(self.client).turns if turn.by_client]
        if not (self._turn and self._sent):
            raise ProtocolError("to continue a step that has not begun")
        self._check_arrival(call.packets, turns[self._turn].takes)
        self._turn += 1

    def _check_arrival(self, packets: Sequence[Packet], takes: Sequence[str]) -> None:
        """Raise ProtocolError unless the server's packets answer those of the client."""
        if not self._sent:
            raise ProtocolError("an answer without a packet that it answers")
        sent = self._sent[0]
        if tuple(packet.leg for packet in packets) != tuple(takes):
            raise ProtocolError(f"packets on other legs than {', '.join(takes)}")
        for packet in packets:
            here = (packet.client, packet.round, packet.step, packet.session, packet.position)
            if here != (self.client, sent.round, sent.step, sent.session, sent.position):
                raise ProtocolError("packets of another client, round or step")
            self.bounds.check(packet, sent, by_client=False)
        self._sent = ()

    def _check_report(self, call: calls.ReportRound) -> None:
        """Check a report: figures of fewer steps than a round's could tell of single samples."""
        del call
        if not self._is_over() or self._turn or self._reported == self.round:
            raise ProtocolError("to report a round that is not over, or a second time")
        self._reported = self.round

    def _leave_round(self) -> None:
        """Note whether a round is left after some of its steps: its weights are not to be sent."""
        self._is_cut_off = self._is_within() or (self._is_cut_off and not self._is_over())

    def _is_within(self) -> bool:
        """Return whether a round has had some of its steps, and not all."""
        return self._phase is not None and self._steps_begun > 0 and not self._is_over()

    def _is_over(self) -> bool:
        """Return whether a round has had all of its steps."""
        phase, figures = self._phase, self.bounds.figures
        # Parties take no step of which the one with the labels, or another, is away.
        return phase is not None and (
            bool(self.bounds.scenario.parties)
            or self._steps_begun == figures.count_begun(self.client, phase)
        )

    def _check_assess(self, call: calls.Assess) -> None:
        """Check a score: figures of fewer outputs than a split's could tell of single samples."""
        whole = len(self._noted) == self.bounds.figures.count_exam(call.split)
        if self._exam != (call.split, call.reading) or not whole:
            raise ProtocolError("to score a split that was not evaluated as a whole")
        self._exam = None

    def _check_write(self, call: calls.Write) -> None:
        if not any(name in GENERATION_METRICS for name in self.bounds.scenario.metrics):
            raise ProtocolError("to generate texts, which the scenario does not score")
        self._check_due(calls.Probe(call.split, call.round, WRITTEN, call.reading))

    def _check_probe(self, call: calls.Probe) -> None:
        if call.number >= self.bounds.figures.count_exam(call.split):
            raise ProtocolError("to evaluate a batch that the split does not have")
        self._check_due(call)
        if self._exam != (call.split, call.reading) or call.number == 0:
            self._exam, self._noted = (call.split, call.reading), set()
        self._probe = call

    def _check_due(self, call: calls.Probe) -> None:
        """Check that an evaluation is due, and that it is the first one of its batch."""
        scenario, evaluate = self.bounds.scenario, self.bounds.scenario.evaluate
        # A budget may end the run after any round, and the last one is evaluated.
        last = self.rounds if scenario.epsilon_limit is None else call.round
        due = self.round <= call.round <= self.rounds and evaluate.due(call.round, last)
        known = call.split in scenario.splits and call.reading in ("", *evaluate.controls)
        if self._turn or not (due and known):
            raise ProtocolError(
                "to evaluate a round, split or control that the scenario does not evaluate"
            )
        # a second probe of a batch could show a hostile server more of its samples
        if call in self._probed:
            raise ProtocolError("to evaluate the same batch twice")
        self._probed.add(call)

    def _check_note(self, call: calls.Note) -> None:
        self._check_last_arrival(call)
        if self._probe is not None:
            self._noted.add(self._probe.number)
            self._probe = None

    def _check_last_arrival(self, call: calls.Note | calls.WriteOn) -> None:
        self._check_arrival(call.packets, self.bounds.scenario.crossings.inference.turns[-1].takes)

    def _check_hear(self, call: calls.Hear) -> None:
        self.bounds.check_announced(self.client, call)
        # Another announced projection of the same samples would show more of them.
        if self._has_heard:
            raise ProtocolError("to hear announcements twice")
        self._has_heard = True

    def _check_sharing(self, call: calls.HandOver | calls.Receive) -> None:
        if not self.bounds.scenario.shares or self._turn:
            raise ProtocolError("to share weights, which the scenario does not share now")
        # Weights before and after a batch tell its gradient, those of the tail the labels' side.
        if self._is_over():
            self._is_cut_off = False
        sends = self._is_cut_off and isinstance(call, calls.HandOver)
        if (sends or self._is_within()) and not self.bounds.hands_on:
            raise ProtocolError("to share averaged weights within a round")
        if isinstance(call, calls.Receive):
            if not self.bounds.hands_on and call.packet.client != self.client:
                raise ProtocolError("averaged weights of another client, whose cut may be another")
            self.bounds.check(call.packet, by_client=False)
