"""From a scenario and its data to live parts: clients, server, wire, course, evaluator."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from simsplit.assembly.courses import clock_for, course_for, federation_for, pace_for
from simsplit.assembly.evaluating import evaluator_for
from simsplit.assembly.exchanges import exchange_for
from simsplit.assembly.frozen import fingerprint
from simsplit.assembly.making import Maker
from simsplit.assembly.ownership import Ownership
from simsplit.assembly.sizing import flops_of
from simsplit.assembly.supplies import Supplies
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool, Pool
from simsplit.evaluation import Evaluator
from simsplit.network.clock import Flops
from simsplit.network.timing import Clock
from simsplit.packets import ClientId
from simsplit.parties.precision import autocast_for
from simsplit.parties.seats import SEATS, Roster
from simsplit.parties.server import Server
from simsplit.scenario import Scenario
from simsplit.schedules.aggregation import SplitFedV1
from simsplit.schedules.copies import TrunkCopies
from simsplit.schedules.courses import Course
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
    """What the weights that never learn are known by."""


class Assembler:
    """Builds the parts of one run, step by step."""

    seats: int = SEATS
    """How many clients are live at once where the others may rest."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        secret: int | None = None,
    ) -> None:
        """`secret` is a deployed client's own, in place of the seed that all know."""
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.autocast = autocast_for(scenario.train.precision, device)
        train = data.train if data.at_hand else None
        self.supplies = Supplies(scenario, data, device)
        self.owners = Ownership(scenario, data.info, device, train, secret)

    @cached_property
    def flops(self) -> Flops:
        """What one sample's forward pass takes in each segment."""
        return flops_of(self.owners)

    @cached_property
    def clock(self) -> Clock | None:
        """Simulated time, if the scenario names a network."""
        return clock_for(self.scenario, self.flops) if self.scenario.network else None

    def assemble(self, pool: Pool | None = None) -> Assembly:
        """The live parts, around clients that live in `pool`, or here."""
        pool = pool or self.make_pool(self.clients)
        exchange = self.exchange(pool)
        if isinstance(self.scenario.aggregation, SplitFedV1):
            pool.workshop = self.workshop(exchange)
        federation, model = federation_for(exchange, self.owners), self.owners.model
        return Assembly(
            pool=pool,
            server=exchange.server,
            wire=exchange.wire,
            exchange=exchange,
            federation=federation,
            course=course_for(self.scenario, exchange, federation, self.clock),
            evaluator=evaluator_for(self.supplies, exchange),
            clients=self.clients,
            frozen=fingerprint([model.head, model.trunk, model.tail]),
        )

    def exchange(self, pool: Pool) -> Exchange:
        """Build a server, a wire, and the choreography between them and the pool's clients."""
        return exchange_for(self.owners, self.autocast, pool)

    def workshop(self, exchange: Exchange) -> TrunkCopies:
        """Where clients train against copies of the trunk: the exchange's server."""
        config = self.scenario.aggregation
        assert isinstance(config, SplitFedV1), "made for no other"
        pace = pace_for(self.scenario, exchange, self.clock)

        def elsewhere() -> TrunkCopies:
            made = Assembler(self.scenario, self.data, self.device)
            return made.workshop(made.exchange(exchange.pool))

        keeps = config.moments == "keep"
        return TrunkCopies(exchange, pace, keep_moments=keeps, elsewhere=elsewhere)

    def make_pool(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Make some of the clients, in this process."""
        maker = Maker(self.owners, self.supplies, self.autocast, self.supplies.exams(numbers))
        if len(numbers) > self.seats and self.owners.may_rest:
            return InlinePool(Roster(numbers, maker, self.seats))
        return InlinePool({number: maker.make(number) for number in numbers})
