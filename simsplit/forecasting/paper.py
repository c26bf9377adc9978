"""A run on paper: courses, averages, cohorts and the wire of a run, without models.

The schedule's own code walks each round. Clients answer with the forms of the packets that a probe
has sent (see `Prober`), so the wire counts what a run's wire would count.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from simsplit.assembly.dry_step import Events, drop_values
from simsplit.engine.pool import Answer, Job, Outcome, Pool
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import Call, CountSteps, HandOver, Plan
from simsplit.parties.changes import Changes
from simsplit.parties.server import Server
from simsplit.schedules.averaging import Averager
from simsplit.schedules.exchange import Event, Exchange
from simsplit.topologies import Topology
from simsplit.wire import Wire

Tensors = Mapping[str, Tensor]


class PaperPool(Pool):
    """Clients of whom only the number of batches and the hand-overs are known."""

    def __init__(
        self,
        batches: Callable[[ClientId, str], int],
        plan: Callable[[int], Any],
        hand_over: Callable[[ClientId], Packet],
    ) -> None:
        self._batches, self._plan, self._hand_over = batches, plan, hand_over

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Answer what a schedule asks for; the answer to everything else is None."""
        answer: object = None
        if isinstance(call, HandOver):
            packet = self._hand_over(client)
            answer = Packet(
                client, Leg.HANDOVER, call.round, packet.step, packet.tensors, packet.names
            )
        elif isinstance(call, CountSteps):
            answer = self._batches(client, call.source)
        elif isinstance(call, Plan):
            answer = self._plan(call.rounds)
        return cast("Answer", answer)

    def tell(self, client: ClientId, call: Call[object]) -> None:
        """Drop the call: clients on paper have nothing that it could change."""

    def ask_each(self, calls: Mapping[ClientId, Call[Answer]]) -> dict[ClientId, Answer]:
        return {client: self.ask(client, call) for client, call in calls.items()}

    def train_rounds(
        self, jobs: Mapping[ClientId, Job], trunk: Tensors
    ) -> Iterator[tuple[ClientId, Outcome]]:
        assert self.workshop is not None, "given to every splitfed_v1"
        for client, job in jobs.items():
            yield client, self.workshop.train(client, job, trunk)


class PaperLearner:
    """A learner, and methods, without tensors: nothing of the trunk's crosses."""

    random = False

    def weights(self) -> Tensors:
        """Return a mapping without tensors."""
        return {}

    moments = state = weights

    def take(self, state: Tensors) -> None:
        """Ignore weights that an average gives."""

    load = take

    def forget_moments(self) -> None:
        """Ignore the request: there are no moments."""

    anchor = forget_slow = forget_moments


class PaperServer:
    """A server that only has such a learner, and methods without memory."""

    def __init__(self) -> None:
        self.learner = self.stack = PaperLearner()

    def enter(self, phase: object, lr_factor: float) -> None:
        """Ignore the round's phase and rate."""

    @contextmanager
    def keep_versions(self) -> Iterator[None]:
        """Open a context that keeps none."""
        yield

    def count_staleness(self, client: ClientId) -> int:
        """Return 0: on paper no other client trains in between."""
        return 0


class PaperAverager:
    """An average whose weights have only their forms."""

    def __init__(self, weights: Tensors) -> None:
        self.weights = {
            name: torch.empty_like(tensor, device="meta") for name, tensor in weights.items()
        }

    def average(self, round_number: int, updates: object) -> None:
        """Ignore what clients sent: the forms of an average are those of one client's weights."""


def make_average(weights: Tensors) -> Averager:
    """Return an average of weights with the forms of these."""
    return cast("Averager", PaperAverager(weights))


class PaperChanges:
    """Codes of shared weights that have only their forms."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._coded: Packet | None = None

    def encode(self, packet: Packet, *scope: object) -> Packet:
        """Return the packet in codes."""
        if self._coded is None:
            held = self._changes.held
            whole = packet.with_names(tuple(held), tuple(held.values()))
            coded = self._changes.encode(whole, "forecast")
            self._coded = coded.with_names(coded.names, drop_values(coded.tensors))
        return packet.with_names(self._coded.names, self._coded.tensors)

    def read(self, packet: Packet) -> Tensors:
        """Return the forms of the whole weights."""
        del packet
        return {n: torch.empty_like(t, device="meta") for n, t in self._changes.held.items()}

    def hold(self, weights: Tensors, since: int) -> None:
        """Ignore new weights: codes have one form in all rounds."""


class PaperExchange(Exchange):
    """An exchange of packets that a probe has sent before."""

    def __init__(
        self,
        pool: PaperPool,
        topology: Topology,
        parts: int,
        step_events: "Callable[[ClientId, str, int | None], tuple[Events, int]]",
        interleaved_events: Callable[[ClientId], Events],
        *,
        parties: Sequence[ClientId] = (),
    ) -> None:
        """`step_events` returns a client's next step (or what it sends before it drops out), and
        the number of its samples.
        """
        server = cast("Server", PaperServer())
        super().__init__(pool, server, Wire(), topology, parts, parties=parties)
        self._next, self._between = step_events, interleaved_events
        self._steps: Counter[ClientId] = Counter()
        self._samples: Counter[ClientId] = Counter()

    def step(self, client: ClientId) -> None:
        """Carry what crosses in a client's next step."""
        for _ in self.step_by_events(client):
            pass

    def step_by_events(self, client: ClientId) -> Iterator[Event]:
        """Carry what crosses in a client's next step; the caller decides when."""
        yield from self._take_step(client)
        if (interleaved := self.moment.phase.interleaved) is not None:
            with self.moment.count_as(interleaved.phase.name):
                for event in self._between(client):
                    if isinstance(event, Packet):
                        self._carry(client, event)

    def step_together(self, clients: Sequence[ClientId], number: int | None = None) -> None:
        """Carry what crosses in the next steps of a cohort."""
        for client in clients:
            for _ in self._take_step(client, number):
                pass

    def abandon(self, client: ClientId, number: int | None = None) -> None:
        """Carry what crosses before a client drops out of its next step."""
        events, _ = self._next(client, "abandon", number)
        for event in events:
            if isinstance(event, Packet):
                self._carry(client, event)

    def collect_reports(self, clients: Sequence[ClientId]) -> dict[ClientId, dict[str, float]]:
        """Return the steps and samples of clients since the last call."""
        reports = {
            client: {"steps": self._steps[client], "samples": self._samples[client]}
            if self._steps[client]
            else {}
            for client in clients
        }
        for client in clients:
            del self._steps[client], self._samples[client]
        return cast("dict[ClientId, dict[str, float]]", reports)

    def announce_forms(self, clients: Sequence[ClientId], tensors: tuple[Tensor, ...]) -> None:
        """Carry what methods announce to every client before training."""
        for client in clients if tensors else ():
            self.wire.carry(Packet(client, Leg.BROADCAST, 0, 0, tensors))

    def _take_step(self, client: ClientId, number: int | None = None) -> Iterator[Event]:
        events, rows = self._next(client, "step", number)
        for event in events:
            yield self._carry(client, event) if isinstance(event, Packet) else event
        self._steps[client] += 1
        self._samples[client] += rows

    def _carry(self, client: ClientId, form: Packet) -> Packet:
        step = Packet(client, form.leg, self.moment.round, 0, form.tensors)
        return self.wire.carry(step)
