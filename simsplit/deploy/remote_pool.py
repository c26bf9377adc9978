"""A remote pool asks clients on their owners' machines: each call is a message on a stream.

Answers are taken in the order of requests, as with hosts, so results equal those of one process.
Each answer is checked before it is used, since clients may be hostile.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.call_codecs import get_answer_codec, read_value, write_call
from simsplit.deploy.client_session import Accusation, ClientLost, ClientSession, FaultOf
from simsplit.deploy.figure_bounds import FigureTooLargeError
from simsplit.deploy.handovers import HandoverJudge
from simsplit.deploy.sent_sizes import SentSizes, TooLarge
from simsplit.deploy.server_tables import FramePurpose, describe_call
from simsplit.deploy.trunk_watch import Growth, TrunkWatch, find_odd, repeat_clipped
from simsplit.engine.host import move_to_device
from simsplit.engine.pool import AheadPool, ClientAtFault, Jobs, Outcome, Sent, Weights, Workshop
from simsplit.errors import OutOfRangeError, ProtocolError, RunError, RunFailedError
from simsplit.legs import ClientId
from simsplit.packets import Packet
from simsplit.parties.calls import (
    Begin,
    BeginInterleaved,
    Call,
    Enter,
    Note,
    Plan,
    Proceed,
    Receive,
    WriteOn,
)
from simsplit.parties.learner import Learner
from simsplit.phases import Phase
from simsplit.states import measure_norm

Answer = TypeVar("Answer")
KEEP, BACK_TO = "keep", "back_to"
MARK, UNDO = "mark", "undo"
"""The commands beside calls, by which clients keep and restore their own states."""
MOST_CONCURRENT = 8
"""Most clients that train concurrently, as each needs memory for its own trunk."""
OWN_FAULTS = (MemoryError, OSError, ImportError, RunError, torch.OutOfMemoryError)
"""Errors of the server itself, whatever it works on."""
Lose = Callable[[ClientId, str, bool, int], None]
"""Cuts off a client, with the reason, whether it is expelled for it, and the round."""
CheckFault = Callable[[ClientId, int, Exception], None]
"""Checks whether a client, in a round, is at fault for an error."""
NAMING = (ClientAtFault, FaultOf)
"""The errors that name the client that is to leave."""


class RemotePool(AheadPool):
    """A run's clients, each reached by a stream of its own."""

    remote: ClassVar[bool] = True

    def __init__(
        self,
        sessions: Mapping[ClientId, ClientSession],
        bounds: Bounds,
        device: torch.device,
        lose: Lose,
        judge: HandoverJudge | None = None,
        *,
        check_fault: CheckFault | None = None,
        growth: Growth | None = None,
    ) -> None:
        """Make a pool of the clients that have sessions.

        `judge` decides who is at fault for an invalid hand-over. `check_fault` raises
        RunFailedError if an error is not the fault of the client that is to be expelled for it.
        `growth` is what is known of the trunk from before, if the round is done again.
        """
        super().__init__()
        self.sessions, self.bounds, self.device = sessions, bounds, device
        self._lose, self._judge, self._check_fault = lose, judge, check_fault
        self._received: dict[ClientId, Packet] = {}
        """The last hand-over that each client was sent."""
        self._phases: dict[ClientId, Phase] = {}
        """The phase that each client has entered last."""
        self._stopping = threading.Event()
        """Set while clients that train concurrently stop, because one of them was lost."""
        self._workshops: list[Workshop] = []
        self._growth, self._sizes = growth or Growth(), SentSizes()
        self._round_under_way = 1

    def work_on(self, sent: Sent) -> "_Blaming":
        """Open a context in which an error expels the client at fault, unless it is our own."""
        return _Blaming(self, sent)

    def watch(self, learner: Learner) -> TrunkWatch:
        return TrunkWatch(learner, self._growth)

    def compare_weights(
        self, updates: Mapping[ClientId, Weights], held: Weights, *, of_trunk: bool
    ) -> None:
        """Raise TooLarge if a client has made weights far larger than those that all began with."""
        least = 1.0 if of_trunk else self.bounds.start_norm
        what = "a copy of the trunk" if of_trunk else "a hand-over"
        for client, weights in updates.items():
            try:
                self.bounds.weights.check_variances(weights)
            except ProtocolError as error:
                raise FaultOf(client, str(error)) from None
            before = max(least, measure_norm(held[name] for name in weights))
            phase = self._phases.get(client)
            steps = 0 if phase is None else self.bounds.figures.count_steps(client, phase)
            before += self.bounds.weights.find_adams_reach(steps, weights.values())
            after = measure_norm(weights.values())
            where = client, self._round_under_way, what
            self._sizes.note_handed(*where, after=after, before=before)

    def end_round(self, round_number: int) -> None:
        """Expel a client whose packets were far larger than those of most clients."""
        with self.work_on({}):
            self._sizes.end_round(round_number)

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        if isinstance(call, Plan):  # by the scenario, since clients are not trusted with it
            stack = self.bounds.packets.stacks[0]
            plan: Any = stack.plan_phases(call.rounds), stack.make_training_phase()
            planned: Answer = plan
            return planned
        if self._stopping.is_set():
            raise RunFailedError("another client of this round was lost")
        return super().ask(client, call)

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        """Send all calls at once; expelled clients are neither asked nor in the answers."""
        # All are asked before the first answer is awaited, so that clients work at the same time.
        present = {client: call for client, call in calls.items() if client in self.sessions}
        numbers = {client: self._send(client, call) for client, call in present.items()}
        return {c: self._receive(c, calls[c], number) for c, number in numbers.items()}

    def train_rounds(self, jobs: Jobs, trunk: Weights) -> Iterator[tuple[ClientId, Outcome]]:
        """Train clients concurrently on copies of the trunk here; yield outcomes in order."""
        clients = list(jobs)
        for start in range(0, len(clients), MOST_CONCURRENT):
            some = clients[start : start + MOST_CONCURRENT]
            outcomes = self._train_concurrently({client: jobs[client] for client in some}, trunk)
            yield from ((client, outcomes[client]) for client in some)

    def _train_concurrently(self, jobs: Jobs, trunk: Weights) -> dict[ClientId, Outcome]:
        """Train each client in its own thread; copies and streams are independent."""
        own = self.workshop
        assert own is not None, "assembly gives one to every splitfed_v1"
        while len(self._workshops) < len(jobs):
            self._workshops.append(own.make_another() if self._workshops else own)
        # A new thread would else use all cores, and sums in other parts round differently.
        alike = partial(torch.set_num_threads, torch.get_num_threads())
        most = 1 if own.draws else len(jobs)  # draws must come in the order of clients
        try:
            with ThreadPoolExecutor(most, initializer=alike) as threads:
                at_work = {
                    client: threads.submit(workshop.train, client, job, trunk)
                    for (client, job), workshop in zip(jobs.items(), self._workshops, strict=False)
                }
                try:
                    done = wait(at_work.values(), return_when=FIRST_EXCEPTION).done
                    # an error of the server's own comes before the loss of a client
                    for future in sorted(
                        done, key=lambda each: isinstance(each.exception(), ClientLost)
                    ):
                        future.result()
                except BaseException:
                    self._stopping.set()  # ask the others no more: the round is trained again
                    raise
        finally:
            self._stopping.clear()
        return {client: future.result() for client, future in at_work.items()}

    def keep(self, round_number: int) -> None:
        self._command(KEEP, round_number)
        if self._judge is not None:
            self._judge.keep(round_number)

    def return_to(self, round_number: int) -> None:
        """Have every client return to its checkpoint of a round."""
        # Answers of the undone round may still arrive; nobody waits for them any more.
        for session in self.sessions.values():
            session.forget()
        self._round_under_way = round_number + 1
        self._command(BACK_TO, round_number)
        if self._judge is not None:
            self._judge.return_to(round_number)

    def collect_carried(self) -> dict[str, Tensor]:
        """Return what a resumed server must know: the last hand-over, and whether it clips."""
        carried = self._sizes.state()
        carried |= {"clips": torch.ones(1)} if self._growth.clips else {}
        return carried if self._judge is None else carried | self._judge.state()

    def load_carried(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `collect_carried` returned; what has been clipped stays so."""
        self._growth.clips |= "clips" in state
        self._sizes.load(state)
        if self._judge is not None:
            self._judge.load(state)

    def mark(self, round_number: int) -> None:
        self._command(MARK, round_number)
        if self._judge is not None:
            self._judge.mark()

    def undo(self, round_number: int) -> None:
        self._command(UNDO, round_number)
        if self._judge is not None:
            self._judge.undo()

    def _command(self, name: str, round_number: int) -> None:
        """Send a command to all clients, then wait for all."""
        numbers = {}
        for client, session in self.sessions.items():
            with self._losing():
                numbers[client] = session.ask(FramePurpose(name), {name: round_number})
        for client, number in numbers.items():
            with self.work_on({client: ()}):
                header, tensors = self.sessions[client].answer(number)
                if header != {"answer": None} or tensors:
                    raise ProtocolError(f"an answer to {name}, which has none")

    def _send(self, client: ClientId, call: Call[object], *, awaited: bool = True) -> int:
        """Send a call, and return the number of the request."""
        header, tensors = write_call(call)
        if isinstance(call, Receive):
            self._received[client] = call.packet
        elif isinstance(call, Enter):
            self._phases[client] = call.phase
        if isinstance(call, Begin):
            self._round_under_way = call.round
        elif isinstance(call, Proceed | Note | WriteOn):
            norm = measure_norm(each for packet in call.packets for each in packet.tensors)
            self.bounds.figures.note_features(client, norm)
        with self._losing():
            return self.sessions[client].ask(describe_call(call), header, tensors, awaited=awaited)

    def _tell(self, client: ClientId, call: Call[object]) -> None:
        self._send(client, call, awaited=False)

    def _receive(self, client: ClientId, call: Call[Answer], sent: int) -> Answer:
        """Wait for an answer, check it, and return it on the server's device."""
        with self.work_on({client: ()}):
            header, tensors = self.sessions[client].answer(sent)
            if header.keys() != {"answer"}:
                raise ProtocolError("a message that is not an answer")
            answer: Answer = read_value(get_answer_codec(call), header["answer"], tensors)
            self.bounds.check_answer(client, call, answer, self._phases.get(client))
            if isinstance(answer, Packet):
                self._check_handed(client, answer)
            elif isinstance(call, Begin | BeginInterleaved | Proceed) and isinstance(answer, tuple):
                self._sizes.note_sent(client, answer)
        return move_to_device(answer, self.device)

    def _check_handed(self, client: ClientId, packet: Packet) -> None:
        """Raise ProtocolError unless a hand-over's seal is valid, and its weights not too large."""
        if self._judge is None:
            return
        before = self._judge.last
        after = self._judge.check_seal(packet)
        if before is None or after is None:
            return
        steps, phase = after.count_steps(client, before), self._phases.get(client)
        # More steps would excuse larger weights, which a receiver then has to leave for.
        most = math.inf if phase is None else self.bounds.figures.count_taken(client, phase)
        # Where turns or rounds are undone, the last hand-over may lack those of all earlier rounds.
        undoes = any(each.response == "rollback" for each in self.bounds.scenario.detectors)
        most *= self._round_under_way if undoes else 1
        if not 0 <= steps <= most:
            raise ProtocolError(
                f"a hand-over that names {steps:,} own steps since the last one, and at most "
                f"{most:,} were asked for"
            )
        if before.norm is None or after.norm is None:
            return
        least = max(before.norm, self.bounds.start_norm)
        least += self.bounds.weights.find_adams_reach(steps, packet.tensors)
        self._sizes.note_handed(
            *(client, self._round_under_way, "a hand-over"), after=after.norm, before=least
        )

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Open a context in which a client is asked; one whose stream is over is lost."""
        try:
            yield
        except ClientLost as lost:
            self._lose(lost.host, lost.cause, False, self._round_under_way)
            raise

    def blame(self, sent: Sent, error: Exception) -> None:
        """Expel the client at fault and raise ClientLost; return if the fault is our own."""
        if isinstance(error, ClientLost):
            self._lose(error.host, error.cause, False, self._round_under_way)
            return
        # On a CPU torch raises a plain RuntimeError where memory ends.
        if isinstance(error, OWN_FAULTS) or "can't allocate memory" in str(error):
            return
        if isinstance(error, Accusation) and self._judge is not None:
            (receiver,) = sent
            with self._losing():
                handed = self._received.get(receiver)
                error = self._judge.find_fault(error, handed, receiver, self.sessions)
        error = self._find_earlier_fault(error)
        if isinstance(error, TooLarge | FigureTooLargeError) and not self._growth.clips:
            repeat_clipped(self._growth)  # it may be so because another client has spoilt the trunk
        client = error.client if isinstance(error, NAMING) else find_odd(sent)
        if self._check_fault is not None:
            self._check_fault(client, self._round_under_way, error)
        self._growth.of_client.clear()  # the others' steps grew because of it, and are undone
        if isinstance(error, TooLarge):  # it is known who made the trunk too large
            self._growth.step_by_step = self._growth.clips = False
        why = _describe_fault(error)
        self._lose(client, why, True, self._round_under_way)
        raise ClientLost(client, why, self._sizes.since.get(client)) from error

    def _find_earlier_fault(self, error: Exception) -> Exception:
        """Return the fault of the client that sent what made another's numbers too large, if any.

        Who handed weights on, or trained the trunk, is judged before who trained on them.
        """
        if not isinstance(error, OutOfRangeError):
            return error
        own = error.client if isinstance(error, TooLarge) else None
        suspect = self._sizes.find_suspect(other_than=own)
        if suspect is None or suspect not in self.sessions:
            return error
        return TooLarge(
            suspect, "numbers far larger than others', so that another client's became too large"
        )


def _describe_fault(error: Exception) -> str:
    """Describe what a client is expelled for."""
    if isinstance(error, ProtocolError):
        return f"it sent {error}"
    reason = f"{type(error).__name__}: {str(error)[:200]}"
    return f"it sent what the server cannot process ({reason})"


class _Blaming:
    """A block in which an exception is some client's fault, or the server's own.

    A class, since it is entered for each packet and answer: a generator would take longer.
    """

    def __init__(self, pool: RemotePool, sent: Sent) -> None:
        self.pool, self.sent = pool, sent

    def __enter__(self) -> None:
        """Enter the block; all is done at its end."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Expel the client at fault, and raise ClientLost with the reason."""
        if isinstance(error, Exception):
            self.pool.blame(self.sent, error)
