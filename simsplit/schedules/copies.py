"""Copies of the trunk: one process's clients, trained round by round against a trunk of their own.

Stacked, the clients of a cohort go through the round lap by lap, and the copies are one tensor
each. Packets of different clients then cross in the order of laps; each client's stay in order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field

from torch import Tensor

from simsplit.engine.pool import Job, Outcome
from simsplit.legs import ClientId
from simsplit.parties.stackable import list_trunk_obstacles
from simsplit.parties.stacked_trunks import StackedTrunks
from simsplit.schedules.cohort import RoundPace
from simsplit.schedules.exchange import Exchange

_METHOD = "method/"


@dataclass(eq=False)
class TrunkCopies:
    """One process's clients, trained round by round against copies of the trunk.

    Copies do not depend on each other. So each is trained where its client lives, one after another
    in one server's modules; only optimizer moments are kept apart between rounds.
    """

    exchange: Exchange
    pace: RoundPace
    _: KW_ONLY
    keep_moments: bool
    elsewhere: "Callable[[], TrunkCopies]"
    """Makes another one, with its own trunk."""
    _moments: dict[ClientId, dict[str, Tensor]] = field(default_factory=dict, init=False)
    _methods: dict[ClientId, dict[str, Tensor]] = field(default_factory=dict, init=False)
    """What the server's methods remember of each copy."""

    def __post_init__(self) -> None:
        self._fresh = _copy(self.exchange.server.stack.state())

    def train(self, client: ClientId, job: Job, trunk: Mapping[str, Tensor]) -> Outcome:
        """Take a client's steps, and return its trunk's weights unless it dropped out."""
        exchange, learner = self.exchange, self.exchange.server.learner
        with exchange.moment.enter_round(job.round, job.phase, [client]), exchange.name_failures():
            exchange.server.enter(job.phase, job.lr_factor)
            # The modules still have the moments of the client that was trained here before.
            learner.forget_moments()
            learner.take({**trunk, **self._moments.get(client, {})})
            learner.forget_slow()
            learner.anchor()
            exchange.server.stack.load(self._methods.get(client, self._fresh))
            if exchange.watch is not None:
                exchange.watch.begin_copy(client)
            self.pace.restart({client: job.spent_s})
            for left in range(job.steps - 1, -1, -1):
                if self.pace.stops(client):
                    break
                (exchange.abandon if job.drops and left == 0 else exchange.step)(client)
            if exchange.watch is not None:
                with exchange.pool.work_on({client: ()}):
                    exchange.watch.end_copy()
        if self.keep_moments:
            self._moments[client] = _copy(learner.moments())
        if remembered := exchange.server.stack.state():
            self._methods[client] = _copy(remembered)
            exchange.server.stack.load(self._fresh)
        return Outcome(
            report=exchange.collect_reports([client])[client],
            counts=exchange.wire.take(),
            trunk=None if job.drops else _copy(learner.weights()),
            late=self.pace.is_late(client),
            readings=exchange.sensor.take() if exchange.sensor else None,
        )

    def find_obstacle(self, job: Job) -> str | None:
        """Return why jobs such as this one cannot be taken lap by lap; None if they can."""
        phase = job.phase
        if not (phase.gradients and phase.crosses) or phase.interleaved is not None:
            return f"in phase {phase.name} not every step is one of the trunk"
        if self.exchange.parts > 1:
            return "mini-batches cross in parts"
        return next(list_trunk_obstacles(self.exchange.server.end), None)

    def train_together(
        self, jobs: Mapping[ClientId, Job], trunk: Mapping[str, Tensor]
    ) -> Iterator[tuple[ClientId, Outcome]]:
        """Take all these clients' steps lap by lap, against stacked copies of the trunk."""
        exchange, learner = self.exchange, self.exchange.server.learner
        job = next(iter(jobs.values()))
        counts = exchange.wire.take()  # of broadcasts, which come before all steps in a table
        with exchange.moment.enter_round(job.round, job.phase, [*jobs]), exchange.name_failures():
            exchange.server.enter(job.phase, job.lr_factor)
            learner.forget_moments()
            learner.take(trunk)
            learner.anchor()
            moments = [self._moments.get(client, {}) for client in jobs]
            copies = StackedTrunks(learner, [*jobs], moments, exchange.server.end.device)
            self.pace.restart({client: each.spent_s for client, each in jobs.items()})
            with exchange.server.serve_copies(copies):
                for lap in range(1, max(each.steps for each in jobs.values()) + 1):
                    self._take_lap(jobs, lap)
        if self.keep_moments:
            self._moments |= copies.moments()
        reports, weights = exchange.collect_reports([*jobs]), copies.weights()
        order = copies.places
        counts |= dict(sorted(exchange.wire.take().items(), key=lambda item: order[item[0][1]]))
        readings = exchange.sensor.take() if exchange.sensor else None
        for client, each in jobs.items():
            trunk_of = None if each.drops else weights[client]
            late = self.pace.is_late(client)
            yield client, Outcome(reports[client], counts, trunk_of, late, readings)
            counts, readings = {}, None  # all clients' came with the first

    def _take_lap(self, jobs: Mapping[ClientId, Job], lap: int) -> None:
        """Take one step of the clients that have one left; some drop out of it."""
        there = [c for c, job in jobs.items() if lap <= job.steps and not self.pace.stops(c)]
        leaving = [client for client in there if jobs[client].drops and jobs[client].steps == lap]
        for client in leaving:
            self.exchange.abandon(client)
        if staying := [client for client in there if client not in leaving]:
            self.exchange.step_together(staying)

    @property
    def draws(self) -> bool:
        """Whether the trunk has dropout, which draws from torch's one global stream."""
        return self.exchange.server.learner.random

    def make_another(self) -> "TrunkCopies":
        """Make another one with its own trunk; both share moments, methods and trust."""
        made = self.elsewhere()
        made._moments, made._methods = self._moments, self._methods
        made.exchange.server.trust = self.exchange.server.trust
        return made

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer moments of each copy, and what methods remember of it."""
        return {
            f"{client}/{prefix}{name}": tensor
            for prefix, kept in (("", self._moments), (_METHOD, self._methods))
            for client, tensors in kept.items()
            for name, tensor in tensors.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._moments.clear()
        self._methods.clear()
        for key, tensor in state.items():
            client, name = key.split("/", 1)
            kept = self._methods if name.startswith(_METHOD) else self._moments
            kept.setdefault(int(client), {})[name.removeprefix(_METHOD)] = tensor


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
