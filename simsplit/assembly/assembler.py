"""The assembler builds a run's live parts: clients, server, wire, course and evaluator.

A recipe is sent to another process, which builds some of a run's clients from it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from weakref import proxy

import torch
from torch import Tensor, nn

from simsplit.assembly import exchanges
from simsplit.assembly.dry_pass import measure_flops
from simsplit.assembly.making import Maker
from simsplit.assembly.memory import measure_row
from simsplit.assembly.ownership import Ownership
from simsplit.assembly.supplies import Supplies
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool, Pool, RestingPool
from simsplit.errors import RunError
from simsplit.evaluation.evaluator import Evaluator
from simsplit.legs import ClientId, is_crowd
from simsplit.machine import autocast_for, find_device
from simsplit.network.clock import Clock, Flops
from simsplit.objects_by_digest import hold
from simsplit.parties.on_disk import OnDisk
from simsplit.parties.seats import SEATS, Roster
from simsplit.parties.server import Server
from simsplit.plugins import gather_again
from simsplit.scenario import Scenario
from simsplit.scenario.loading import collect_held
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
    """The fingerprint of the weights that never learn; None if all learn."""
    workshop: TrunkCopies | None = None
    """Where clients train against copies of the trunk, if they do."""
    is_tied: bool = False
    """Whether clients' heads and tails have one table of tokens."""


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
        *,
        with_trunk: bool = True,
        rests_in: Path | None = None,
        stacks: bool = True,
    ) -> None:
        """Prepare to build; `secret` seeds a deployed client's draws in place of the known seed.

        Without trunk only clients can be built. `rests_in` is the folder of a run's checkpoints, in
        which its clients rest if the scenario says so; without it they rest in memory. Without
        `stacks` clients train one after another, whatever the scenario says.
        """
        self.stacks = stacks and scenario.inline_engine.stack != "off"
        self.rests_in = rests_in if scenario.rests_on_disk else None
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.autocast = autocast_for(scenario.train.precision, device)
        train = data.train if data.has_samples else None
        self.supplies = Supplies(scenario, data, device)
        self.owners = Ownership(scenario, data.info, device, train, secret, with_trunk=with_trunk)

    @cached_property
    def flops(self) -> Flops:
        """The operations of one sample's forward pass, by segment."""
        return measure_flops(self.owners)

    @cached_property
    def clock(self) -> Clock | None:
        """The clock of simulated time; None if the scenario names no network."""
        return exchanges.build_clock(self.scenario, self.flops) if self.scenario.network else None

    def assemble(self, pool: Pool | None = None) -> Assembly:
        """Build the live parts around the clients of `pool`; None: clients of this process."""
        pool = pool or self.make_pool(self.clients)
        exchange = self.build_exchange(pool)
        exchange.server.end.joins_rows = self.stacks and not self.scenario.reads_texts
        workshop = None
        if self.scenario.aggregation.kind == "splitfed_v1":
            workshop = self.build_workshop(exchange)
            # It reaches the pool: held by the pool, it would keep all parts after their run.
            pool.workshop = proxy(workshop)
        federation, model = exchanges.build_federation(exchange, self.owners), self.owners.model
        return Assembly(
            pool=pool,
            server=exchange.server,
            wire=exchange.wire,
            exchange=exchange,
            federation=federation,
            course=exchanges.build_course(self.scenario, exchange, federation, self.clock),
            evaluator=exchanges.build_evaluator(self.supplies, exchange),
            clients=self.clients,
            frozen=fingerprint([model.head, model.trunk, model.tail]),
            workshop=workshop,
            is_tied=self.owners.is_tied,
        )

    def build_exchange(self, pool: Pool) -> Exchange:
        """Build a server, a wire, and the exchange that connects them to the pool's clients."""
        return exchanges.build_exchange(self.owners, self.autocast, pool, self.supplies)

    def build_workshop(self, exchange: Exchange) -> TrunkCopies:
        """Build the workshop in which clients train against copies of the exchange's trunk."""
        config = self.scenario.aggregation
        assert config.kind == "splitfed_v1", "only splitfed_v1 trains copies of the trunk"
        pace = exchanges.build_pace(self.scenario, exchange, self.clock)

        def build_elsewhere() -> TrunkCopies:
            made = Assembler(self.scenario, self.data, self.device)
            return made.build_workshop(made.build_exchange(proxy(exchange.pool)))

        keeps = config.moments == "keep"
        return TrunkCopies(exchange, pace, keep_moments=keeps, elsewhere=build_elsewhere)

    def make_pool(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Make these clients in this process, stacked in a step if the scenario says so."""
        pool = self._make_pool(numbers)
        if self.stacks:
            stack = self.scenario.inline_engine.stack
            pool.stack_steps(stack if isinstance(stack, int) else None)
        return pool

    def _make_pool(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Make clients; many can share a few seats if they can rest."""
        if self.scenario.parties:
            makers = {n: self._build_maker(self.supply(n), [n]) for n in numbers}
            return InlinePool({number: maker.make(number) for number, maker in makers.items()})
        maker, rest = self._build_maker(self.supplies, numbers), None
        if self.rests_in is not None:
            width = measure_row(self.owners)
            rest = OnDisk(self.rests_in, len(numbers), width, [*maker.feeds(numbers[0])])
        if rest is not None or (len(numbers) > self.seats and self.owners.can_rest):
            sparse = is_crowd(self.scenario.clients.count)
            kept = self.owners.belongings
            return RestingPool(Roster(numbers, maker, self.seats, kept, sparse=sparse, rest=rest))
        return InlinePool({number: maker.make(number) for number in numbers})

    def supply(self, number: ClientId) -> Supplies:
        """Return what a client gets its data from: all of them, or a party's portion."""
        if not self.data.portions:
            return self.supplies
        return Supplies(self.scenario, self.data.of_party(number), self.device, self.data)

    def _build_maker(self, supplies: Supplies, numbers: Sequence[ClientId]) -> Maker:
        return Maker(self.owners, supplies, self.autocast, supplies.exams(numbers))


@dataclass(frozen=True)
class HostRecipe:
    """Everything that another process needs to build some of a run's clients."""

    scenario: Scenario
    data: Prepared
    device: str
    held: Mapping[str, object]
    """Objects that the user passed from Python, by digest."""

    @classmethod
    def of(cls, scenario: Scenario, data: Prepared, device: str) -> "HostRecipe":
        """Return the recipe for hosts that compute on `device`; auto: what each of them has."""
        return cls(scenario, data, device, collect_held(scenario.model))

    @property
    def imports(self) -> Callable[[], object] | None:
        """A call that imports plugins on a host, before the recipe is sent; None without any."""
        away = tuple(origin for origin in self.scenario.plugins.origins if origin.portable)
        return partial(gather_again, away) if away else None

    def build(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Build these clients in their state before training."""
        hold(self.held)
        copies = self.scenario.aggregation.kind == "splitfed_v1"
        device = find_device(self.device)
        assembler = Assembler(self.scenario, self.data, device, with_trunk=copies)
        pool = assembler.make_pool(numbers)
        if copies:
            pool.workshop = assembler.build_workshop(assembler.build_exchange(pool))
        return pool


def fingerprint(modules: Iterable[nn.Module]) -> Tensor | None:
    """Return 16 bytes that identify the frozen weights; None if every weight learns.

    Checkpoints do not hold weights that never learn; a resumed run builds them again. They can have
    changed since: a model of the hub may have a new revision, one in a folder may be retrained.

    Call it before training: a phase may freeze further weights for some rounds.
    """
    digest, some = hashlib.blake2b(digest_size=16), False
    for module in modules:
        for name, weight in module.named_parameters():
            if not weight.requires_grad:
                some = True
                digest.update(name.encode())
                plain = weight.detach().cpu().contiguous().flatten()
                digest.update(plain.view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8) if some else None


def refuse_others(ours: Tensor | None, kept: Tensor | None) -> None:
    """Raise RunError if a checkpoint was written with other frozen weights than `ours`.

    A checkpoint without a fingerprint (`kept` is None) holds the weights themselves.
    """
    if kept is not None and (ours is None or not torch.equal(ours, kept)):
        raise RunError(
            "the model's frozen weights differ from the ones that the run began with, and "
            "checkpoints hold only weights that learn. Restore the model (model.revision names the "
            "revision of a model on the hub), or start a new run with another --out"
        )
