"""The asynchronous course: every client at its own pace, in the order of simulated time.

The events of simulated time drive the real work: a client's forward pass through the trunk runs
when its SMASHED packet has been served, its backward pass when its gradient has. Others may have
moved the trunk in between; the gradient is that of the weights that the forward pass saw.
"""

from collections import defaultdict
from collections.abc import Iterator

from simsplit.network.events import Stage, StepDone, play
from simsplit.network.timing import Clock
from simsplit.packets import ClientId
from simsplit.protocol import Turn
from simsplit.schedules.cohort import Lineup
from simsplit.schedules.courses import Course, RoundDone, Tick
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.schedules.pace import RoundPace


class AsTheyCome(Course):
    """Steps of all clients, interleaved by the speed of their devices and links."""

    def __init__(
        self,
        exchange: Exchange,
        pace: RoundPace,
        federation: Federation | None,
        clock: Clock,
        max_ahead: int | None,
    ) -> None:
        super().__init__(exchange, pace, federation)
        self.clock, self.max_ahead = clock, max_ahead
        self._stale: dict[ClientId, list[int]] = defaultdict(list)

    def train(self, lineup: Lineup, tick: Tick) -> RoundDone:
        """Play all clients' steps in the order of simulated time."""
        self._stale.clear()
        self._done, self._total, self._tick = 0, sum(lineup.steps.values()), tick
        actors = {client: self._steps(client, lineup) for client in lineup.clients}
        with self.exchange.server.keep_versions():
            play(actors, self.clock.server.slots, self.max_ahead)
        done = self.finish(lineup)
        for client, report in done.reports.items():
            if "steps" in report:
                stale = self._stale[client] or [0]
                report["staleness"] = sum(stale) / len(stale)
        return done

    def _steps(self, client: ClientId, lineup: Lineup) -> Iterator[Stage | StepDone]:
        """Take one client's round, stage by stage."""
        for left in range(lineup.steps[client] - 1, -1, -1):
            if self.pace.stops(client):
                return
            if left == 0 and client in lineup.drops:
                self.exchange.abandon(client)
            else:
                yield from self._step(client)
            self._done += 1
            self._tick(self._done, self._total)
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
