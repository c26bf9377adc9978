"""Courses of a round: in turn over one trunk, as one batch, with a trunk each, or as events come.

All courses train the same clients through the same exchange; they differ in who waits for whom, and
return what each client did in the round.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from simsplit.engine.pool import Job
from simsplit.legs import ClientId, Leg
from simsplit.network.clock import Clock
from simsplit.network.events import Stage, StepDone, play
from simsplit.protocol import Turn
from simsplit.schedules.cohort import Lineup, RoundPace
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.schedules.responses import Turns
from simsplit.schedules.schedule import LapsConfig, ScheduleConfig

Tick = Callable[[int, int], None]
"""Called after each step with the number of steps done, and of all steps."""
Report = dict[str, float]


@dataclass
class RoundDone:
    """The result of a round: sums by client, and who dropped out or was late."""

    reports: dict[ClientId, Report] = field(default_factory=dict)
    dropped: frozenset[ClientId] = frozenset()
    late: frozenset[ClientId] = frozenset()


@dataclass(eq=False)
class Course(ABC):
    """One way for a round to go."""

    exchange: Exchange
    pace: RoundPace
    federation: Federation | None

    def run(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Take a lineup through a round, averages included."""
        self.pace.restart()
        if self.exchange.watch is not None:
            self.exchange.watch.begin_round()
        with self.exchange.name_failures():
            if self.federation is not None:
                self.federation.send(lineup.clients, lineup.round)
            return self.train(lineup, tick)

    @abstractmethod
    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Take the round's steps, and average if there is something to average."""

    def finish(self, lineup: Lineup) -> RoundDone:
        """Collect the reports of a round whose steps were taken here, and average."""
        self.exchange.pool.end_round(lineup.round)
        if self.exchange.watch is not None:
            self.exchange.watch.end_round()
        reports = self.exchange.collect_reports(lineup.clients)
        late = frozenset(client for client in lineup.clients if self.pace.is_late(client))
        done = RoundDone(reports, lineup.drops, late)
        if self.federation is not None:
            self.federation.collect(self.count_samples(done), lineup.round, {})
        return done

    def begin_lap(
        self, lineup: Lineup, lap: Iterable[ClientId], number: int, batch: int | None = None
    ) -> list[ClientId]:
        """Let clients of a lap drop out, and return those that stay for its step, in their order.

        `number` is the lap's, from 1 on; `batch` is that of its batch, None: each client's next.
        """
        there = [client for client in lap if not self.pace.stops(client)]
        leaving = [c for c in there if c in lineup.drops and lineup.steps[c] == number]
        for client in leaving:
            self.exchange.abandon(client, batch)
        return [client for client in there if client not in leaving]

    def count_samples(self, done: RoundDone) -> dict[ClientId, int]:
        """Count the samples of the clients whose work counts in an average."""
        lost = done.dropped | (done.late if self.pace.skips else frozenset())
        counted: dict[ClientId, int] = {}
        for client, report in done.reports.items():
            if "samples" in report and client not in lost:
                with self.exchange.pool.work_on({client: ()}):
                    counted[client] = int(report["samples"])
        return counted


@dataclass(eq=False)
class InTurn(Course):
    """One step after another over one trunk, in the schedule's order."""

    schedule: ScheduleConfig
    hands_over: bool = field(kw_only=True)
    """Whether what clients share goes to the next one before each step."""
    turns: Turns | None = field(default=None, init=False)
    """Kept where a detector judges the trunk after each client's turn."""

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Train the round's turns one after another."""
        turns = list(self.schedule.turns(lineup.steps))
        left = dict(lineup.steps)
        # A client may only begin ahead of its turn if nothing of other turns reaches its head.
        if not (self.hands_over or self.pace.skips or lineup.drops):
            has_interleaved = lineup.phase.interleaved is not None
            parts = self.exchange.parts
            # Interleaved steps come after a mini-batch's last part, which no pool knows.
            if parts == 1 or not has_interleaved:
                begun = [client for client in turns for _ in range(parts)]
                self.exchange.pool.expect(begun, lineup.round, has_interleaved=has_interleaved)
        for done, client in enumerate(turns, start=1):
            if self.turns is not None and left[client] == lineup.steps[client]:
                self.turns.begin()
            left[client] -= 1
            if not self.pace.stops(client):
                if self.hands_over and (packet := self.exchange.hand_over(client)) is not None:
                    self.pace.receive(client, packet)
                # A dropping client's steps end with the one that it drops out of (see `choose`).
                dropping = left[client] == 0 and client in lineup.drops
                (self.exchange.abandon if dropping else self.exchange.step)(client)
            if self.turns is not None and left[client] == 0:
                self.turns.end(client)
            tick(done, len(turns))
        return self.finish(lineup)


@dataclass(eq=False)
class Together(Course):
    """Laps, each of them one step of the trunk on all its batches."""

    schedule: LapsConfig

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Train lap after lap; clients that drop out or are late are not in the lap's batch."""
        total, done = sum(lineup.steps.values()), 0
        for number, lap in enumerate(self.schedule.laps(lineup.steps), start=1):
            if staying := self.begin_lap(lineup, lap, number):
                self.exchange.step_together(staying)
            # Late clients count too, so that progress reaches the total.
            done += len(lap)
            tick(done, total)
        return self.finish(lineup)


@dataclass(eq=False)
class Jointly(Course):
    """Laps, each of them one step of all parties on their portions of the same samples."""

    reader: ClientId
    """The party that has the labels."""
    waits: bool = field(kw_only=True)
    """Whether a step that lacks a party is not taken."""

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Train lap after lap, with all parties or with those that are there."""
        most = lineup.most
        # Parties that were away go on with the others' batches, so the round decides the number.
        first = (lineup.round - 1) * most
        for number in range(most):
            lap = [client for client, steps in lineup.steps.items() if number < steps]
            staying = self.begin_lap(lineup, lap, number + 1, first + number)
            # Without the reader nobody knows the labels.
            complete = not self.waits or len(staying) == len(self.exchange.parties)
            if self.reader in staying and complete:
                self.exchange.step_together(sorted(staying), first + number)
            tick(number + 1, most)
        return self.finish(lineup)


class Apart(Course):
    """Each client's whole round against its own copy of the trunk, then the copies' average."""

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Train client after client, or on several hosts at once."""
        assert self.federation is not None, "copies of a trunk are there to be averaged"
        assert self.federation.trunk is not None, "copies of a trunk are there to be averaged"
        jobs = {
            client: Job(
                lineup.round,
                steps,
                lineup.phase,
                lineup.lr_factor,
                drops=client in lineup.drops,
                spent_s=self.pace.spent_s[client],
            )
            for client, steps in lineup.steps.items()
        }
        total, done = sum(lineup.steps.values()), 0
        trunks, reports, late = {}, {}, set()
        outcomes = self.exchange.pool.train_rounds(jobs, self.federation.trunk.weights)
        for client, outcome in outcomes:
            # A host or thread counts on a wire of its own; tables are made from this one.
            self.exchange.wire.absorb(outcome.counts)
            if self.exchange.sensor and outcome.readings:
                self.exchange.sensor.merge(outcome.readings)
            reports[client] = outcome.report
            if outcome.trunk is not None:
                trunks[client] = outcome.trunk
            if outcome.late:
                late.add(client)
            done += lineup.steps[client]
            tick(done, total)
        self.exchange.pool.end_round(lineup.round)
        # The moments are those of the copy that was trained here last.
        self.exchange.server.learner.forget_moments()
        result = RoundDone(reports, lineup.drops, frozenset(late))
        self.federation.collect(self.count_samples(result), lineup.round, trunks)
        return result


@dataclass(eq=False)
class AsTheyCome(Course):
    """Steps of all clients, interleaved by the speed of their devices and links.

    The events of simulated time drive the real work: a client's forward pass through the trunk runs
    when its SMASHED packet has been served, its backward pass when its gradient has. Others may
    have moved the trunk in between; the gradient is that of the weights that the forward pass saw.
    """

    clock: Clock
    max_ahead: int | None
    _stale: dict[ClientId, list[int]] = field(default_factory=lambda: defaultdict(list), init=False)

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Play all clients' steps in the order of simulated time."""
        self._stale.clear()
        # `tick` reaches all parts of the run, this course too, and so is not kept.
        done_steps, total = count(1), sum(lineup.steps.values())
        actors = {
            client: self._steps(client, lineup, lambda: tick(next(done_steps), total))
            for client in lineup.clients
        }
        with self.exchange.server.keep_versions():
            play(actors, self.clock.server.slots, self.max_ahead)
        done = self.finish(lineup)
        for client, report in done.reports.items():
            if "steps" in report:
                stale = self._stale[client] or [0]
                report["staleness"] = sum(stale) / len(stale)
        return done

    def _steps(
        self, client: ClientId, lineup: Lineup, end_step: Callable[[], None]
    ) -> Iterator[Stage | StepDone]:
        """Take one client's round, stage by stage."""
        packets, nbytes = self.exchange.wire.count_sent(lineup.round, client, Leg.BROADCAST)
        if packets:  # it can begin once it has the average
            seconds = self.clock.compute_transfer_s(client, Leg.BROADCAST, packets, nbytes)
            yield Stage("wire", seconds)
        for left in range(lineup.steps[client] - 1, -1, -1):
            if self.pace.stops(client):
                return
            if left == 0 and client in lineup.drops:
                self.exchange.abandon(client)
            else:
                yield from self._step(client)
            end_step()
            yield StepDone(last=left == 0)

    def _step(self, client: ClientId) -> Iterator[Stage]:
        rows = 0
        first, *_ = self.exchange.topology.training.turns
        for event in self.exchange.step_by_events(client):
            if isinstance(event, Turn):
                yield self.clock.build_computing(client, event, rows)
                # Counted after the simulated wait, in which others may have stepped the trunk.
                if event.last and not event.by_client:
                    self._stale[client].append(self.exchange.server.count_staleness(client))
                continue
            if event.leg is first.sends[0]:  # the number of rows is known from the packet
                rows = len(event.tensors[0])
                yield self.clock.build_computing(client, first, rows)
            yield self.clock.build_sending(event)
