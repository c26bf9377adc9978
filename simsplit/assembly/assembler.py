"""The assembler builds a run's live parts: clients, server, wire, course and evaluator."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from simsplit.assembly.exchanges import (
    build_clock,
    build_course,
    build_evaluator,
    build_exchange,
    build_federation,
    build_pace,
)
from simsplit.assembly.frozen import fingerprint
from simsplit.assembly.making import Maker
from simsplit.assembly.ownership import Ownership
from simsplit.assembly.sizing import measure_flops
from simsplit.assembly.supplies import Supplies
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool, Pool
from simsplit.evaluation.evaluator import Evaluator
from simsplit.machine import autocast_for
from simsplit.network.clock import Clock, Flops
from simsplit.packets import ClientId
from simsplit.parties.seats import SEATS, Roster
from simsplit.parties.server import Server
from simsplit.scenario import Scenario
from simsplit.schedules.aggregation import SplitFedV1
from simsplit.schedules.courses import Course, TrunkCopies
from simsplit.schedules.exchange import Exchange
from simsplit.schedules.federation import Federation
from simsplit.wire import Wire


@dataclass
class Assembly:
    """The live parts of a run."""

    pool: Pool
    server: Server
    wire: Wire
    exchange: Exchange
    federation: Federation | None
    course: Course
    evaluator: Evaluator
    clients: range
    frozen: torch.Tensor | None
    """The fingerprint of the weights that never learn; None if all learn."""


class Assembler:
    """Builder of the parts of one run."""

    seats: int = SEATS
    """How many clients are live at once if the others can rest."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        secret: int | None = None,
    ) -> None:
        """Prepare to build; `secret` seeds a deployed client's draws in place of the known seed."""
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.autocast = autocast_for(scenario.train.precision, device)
        train = data.train if data.has_samples else None
        self.supplies = Supplies(scenario, data, device)
        self.owners = Ownership(scenario, data.info, device, train, secret)

    @cached_property
    def flops(self) -> Flops:
        """The operations of one sample's forward pass, by segment."""
        return measure_flops(self.owners)

    @cached_property
    def clock(self) -> Clock | None:
        """The clock of simulated time; None if the scenario names no network."""
        return build_clock(self.scenario, self.flops) if self.scenario.network else None

    def assemble(self, pool: Pool | None = None) -> Assembly:
        """Build the live parts around the clients of `pool`; None: clients of this process."""
        pool = pool or self.make_pool(self.clients)
        exchange = self.build_exchange(pool)
        if isinstance(self.scenario.aggregation, SplitFedV1):
            pool.workshop = self.build_workshop(exchange)
        federation, model = build_federation(exchange, self.owners), self.owners.model
        return Assembly(
            pool=pool,
            server=exchange.server,
            wire=exchange.wire,
            exchange=exchange,
            federation=federation,
            course=build_course(self.scenario, exchange, federation, self.clock),
            evaluator=build_evaluator(self.supplies, exchange),
            clients=self.clients,
            frozen=fingerprint([model.head, model.trunk, model.tail]),
        )

    def build_exchange(self, pool: Pool) -> Exchange:
        """Build a server, a wire, and the exchange that connects them to the pool's clients."""
        return build_exchange(self.owners, self.autocast, pool)

    def build_workshop(self, exchange: Exchange) -> TrunkCopies:
        """Build the workshop in which clients train against copies of the exchange's trunk."""
        config = self.scenario.aggregation
        assert isinstance(config, SplitFedV1), "only splitfed_v1 trains copies of the trunk"
        pace = build_pace(self.scenario, exchange, self.clock)

        def build_elsewhere() -> TrunkCopies:
            made = Assembler(self.scenario, self.data, self.device)
            return made.build_workshop(made.build_exchange(exchange.pool))

        keeps = config.moments == "keep"
        return TrunkCopies(exchange, pace, keep_moments=keeps, elsewhere=build_elsewhere)

    def make_pool(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Make these clients in this process; many can share a few seats if they can rest."""
        maker = Maker(self.owners, self.supplies, self.autocast, self.supplies.exams(numbers))
        if len(numbers) > self.seats and self.owners.can_rest:
            return InlinePool(Roster(numbers, maker, self.seats))
        return InlinePool({number: maker.make(number) for number in numbers})
