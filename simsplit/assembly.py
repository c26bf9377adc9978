"""From a scenario and its data to live parts: learners, clients, server, wire, evaluator.

Who owns what is decided here and nowhere else: which segments clients share, whose the tail is, and
which stream each owner's weights and methods draw from. A client's streams depend on its number
alone, so it is the same whether ten or a hundred others exist, and wherever it is built.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from simsplit.data import Prepared
from simsplit.data.batches import Batcher
from simsplit.data.samples import Samples
from simsplit.engine.pool import Crew, InlinePool, Pool
from simsplit.evaluation import Evaluator
from simsplit.methods.base import Side, Step
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.fresh import Shape
from simsplit.models.split import SplitModel
from simsplit.network.clock import Flops, order_of
from simsplit.network.flops import count_flops
from simsplit.network.timing import Clock
from simsplit.packets import ClientId
from simsplit.parties.client import Client, ClientParts
from simsplit.parties.feed import Exam, Feed
from simsplit.parties.learner import Learner
from simsplit.parties.precision import autocast_for
from simsplit.parties.server import Server
from simsplit.preflight import (
    RUNTIME,
    Estimate,
    activation_bytes,
    trained_bytes,
    weights_bytes,
)
from simsplit.scenario import Scenario
from simsplit.schedules.aggregation import Fused, NoAggregation, SplitFedV1
from simsplit.schedules.asynchronous import AsTheyCome
from simsplit.schedules.averaging import Averager
from simsplit.schedules.config import AsynchronousConfig, LapsConfig
from simsplit.schedules.copies import TrunkCopies
from simsplit.schedules.courses import Apart, Course, InTurn, Together
from simsplit.schedules.exchange import EXCHANGES, Exchange
from simsplit.schedules.federation import Federation
from simsplit.schedules.pace import Pace
from simsplit.seeds import seed_for
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


@dataclass(frozen=True)
class CrewRecipe:
    """All that another process needs to build some of a run's clients; it travels there."""

    scenario: Scenario
    data: Prepared
    device: str

    @classmethod
    def of(cls, scenario: Scenario, data: Prepared, device: str) -> "CrewRecipe":
        """Without the class that plugins made of Scenario, which no other process could import."""
        values = {name: getattr(scenario, name) for name in Scenario.model_fields}
        return cls(Scenario.model_construct(**values), data, device)

    def build(self, numbers: Sequence[ClientId]) -> Crew:
        """These clients, as they are before training."""
        assembler = Assembler(self.scenario, self.data, torch.device(self.device))
        crew = assembler.crew(numbers)
        if self.scenario.aggregation.kind == "splitfed_v1":
            exchange = assembler.exchange(InlinePool(crew))
            crew.workshop = assembler.workshop(exchange)
        return crew


class Assembler:
    """Builds the parts of one run, step by step."""

    def __init__(self, scenario: Scenario, data: Prepared, device: torch.device) -> None:
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.vanilla = scenario.topology == "vanilla"
        self.averages = scenario.aggregation.kind != "none"
        self.input = data.info.shape, data.info.classes
        self.model: SplitModel = scenario.model.build(*self.input, scenario.seed)
        self.shapes: tuple[Shape, Shape] = (self.model.cut_shape, self.model.feature_shape)
        self.autocast = autocast_for(scenario.train.precision, device)
        self._trunk, self._head, self._tail = (
            self._placed(part) for part in (self.model.trunk, self.model.head, self.model.tail)
        )
        self._server_stack = self._stack("server", seed_for(scenario.seed, "server"))
        self._shared_stack = self._stack("client", seed_for(scenario.seed, "client"))
        self._shared_learner: Learner | None = None

    @cached_property
    def flops(self) -> Flops:
        """What one sample's forward pass takes in each segment, methods included; counted once."""
        few = 2
        client, server = self._shared_stack, self._server_stack
        step = Step(0, 0, 0, self.scenario.seed, training=False)
        client.hear(server.announce())
        parts = [self._head, self._trunk, self._tail, client.modules, server.modules]
        x = torch.zeros(few, *self.data.info.shape, device=self.device)
        with torch.no_grad(), in_inference(parts):
            head, z = count_flops(lambda: client.encode(self._head(x), step))
            trunk, u = count_flops(lambda: server.encode(self._trunk(server.lift(z, step)), step))
            tail, _ = count_flops(lambda: self._tail(u if self.vanilla else client.lift(u, step)))
        return Flops(head / few, trunk / few, tail / few)

    @cached_property
    def clock(self) -> Clock | None:
        """Simulated time, if the scenario names a network."""
        scenario = self.scenario
        if scenario.network is None:
            return None
        schedule = scenario.schedule
        bound = schedule.max_ahead if isinstance(schedule, AsynchronousConfig) else None
        return Clock(
            order_of(schedule.kind, scenario.aggregation.kind),
            scenario.topology,
            scenario.network.rates(scenario.clients.count, scenario.seed),
            scenario.network.server,
            self.flops,
            bound,
        )

    def estimate(self, hosts: int = 0) -> Estimate:
        """Memory by purpose, before a client's own parts are made; of all processes.

        Every host has its own copy of the images, which also wait for it in shared memory, and of
        what clients share; of the trunk where each client trains a copy of it.
        """
        train, clients = self.scenario.train, self.scenario.clients
        own, shared = self._owned_modules(), list(self._shared_modules().values())
        per_client = trained_bytes(own, train.client.slots)
        if self.averages:
            per_client += trained_bytes(shared, train.client.slots)
        elif clients.handover == "weights":
            per_client += weights_bytes(shared) * train.client.slots
        samples = [self.data.train, self.data.validation, self.data.auxiliary, self.data.test]
        images = sum(part.nbytes for part in samples if part is not None)
        server = list(self._server_modules().values())
        copies, servers = 0, 1
        if self.scenario.aggregation.kind == "splitfed_v1":
            servers += hosts
            kept = self.scenario.aggregation.moments == "keep"
            each = 1 + (train.server.slots if kept else 0)  # what a round gives back, and moments
            copies = weights_bytes(server) * each * len(self.clients)
        return Estimate(
            {
                "clients' own parts": per_client * len(self.clients),
                "shared head and tail": trained_bytes(shared, train.client.slots) * (1 + hosts),
                "server": trained_bytes(server, train.server.slots) * servers,
                "trunk copies": copies,
                "activations of a step": self._activations() * max(1, hosts),
                "images": images * (2 + hosts if hosts else 1),
                "Python and torch": RUNTIME * (1 + hosts),
            }
        )

    def joint(self) -> tuple[SplitModel, tuple[Stack, Stack]]:
        """A second copy of the same model and of both sides' methods, for whoever compares."""
        model = self.scenario.model.build(*self.input, self.scenario.seed)
        for part in (model.head, model.trunk, model.tail):
            self._placed(part)
        client = self._stack("client", seed_for(self.scenario.seed, "client"))
        server = self._stack("server", seed_for(self.scenario.seed, "server"))
        client.hear(server.announce())
        return model, (client, server)

    def assemble(self, pool: Pool | None = None) -> Assembly:
        """The live parts, around clients that live in `pool`, or here."""
        crew = self.crew(self.clients) if pool is None else Crew({})
        pool = pool or InlinePool(crew)
        exchange = self.exchange(pool)
        if isinstance(self.scenario.aggregation, SplitFedV1):
            crew.workshop = self.workshop(exchange)
        federation = self._federation(exchange)
        return Assembly(
            pool,
            exchange.server,
            exchange.wire,
            exchange,
            federation,
            self._course(exchange, federation),
            self._evaluator(exchange),
            self.clients,
        )

    def exchange(self, pool: Pool) -> Exchange:
        """A server, a wire, and the choreography between them and the pool's clients."""
        return EXCHANGES[self.scenario.topology](pool, self._server(), Wire())

    def workshop(self, exchange: Exchange) -> TrunkCopies:
        """Where clients train against copies of the trunk: the exchange's server."""
        config = self.scenario.aggregation
        assert isinstance(config, SplitFedV1), "made for no other"
        return TrunkCopies(exchange, self._pace(exchange), keep_moments=config.moments == "keep")

    def crew(self, numbers: Sequence[ClientId]) -> Crew:
        """Some of the clients."""
        data, scenario = self.data, self.scenario
        private = self._batcher(data.train, augment=True)
        public = None if data.auxiliary is None else self._batcher(data.auxiliary, augment=True)
        everything = torch.arange(0 if data.auxiliary is None else len(data.auxiliary))
        exams: dict[str, Exam] = {split: self._exam(split) for split in scenario.splits}
        made = {}
        for number in numbers:
            part = torch.as_tensor(data.parts[number])
            feeds = {"private": self._feed(private, part, number)}
            if public is not None:
                feeds["public"] = self._feed(public, everything, number)
            made[number] = Client(
                number,
                self._client_parts(number),
                feeds,
                exams,
                self.model.loss,
                seed=seed_for(scenario.seed, "client", number),
                device=self.device,
                autocast=self.autocast,
            )
        return Crew(made)

    def _federation(self, exchange: Exchange) -> Federation | None:
        config = self.scenario.aggregation
        if isinstance(config, NoAggregation):
            return None
        train, shared = self.scenario.train, self._shared_modules()
        clients = Learner(shared, train.client) if shared else None
        trunk = exchange.server.learner if isinstance(config, SplitFedV1) else None

        def averager(learner: Learner | None) -> Averager | None:
            if learner is None:
                return None
            where = "aggregation.strategy"
            return config.strategy.build(learner.weights(), where, learner.buffers)

        return Federation(
            exchange.pool,
            exchange.server,
            exchange.wire,
            shared=averager(clients),
            trunk=averager(trunk),
        )

    def _course(self, exchange: Exchange, federation: Federation | None) -> Course:
        """How this scenario's rounds go."""
        schedule, aggregation = self.scenario.schedule, self.scenario.aggregation
        pace = self._pace(exchange)
        if isinstance(aggregation, SplitFedV1):
            return Apart(exchange, pace, federation)
        if isinstance(schedule, AsynchronousConfig):
            assert self.clock is not None, "a scenario without network is refused"
            return AsTheyCome(exchange, pace, federation, self.clock, schedule.max_ahead)
        if isinstance(aggregation, Fused):
            assert isinstance(schedule, LapsConfig), "fused with another schedule is refused"
            return Together(exchange, pace, federation, schedule)
        hands_over = not self.averages and bool(self._shared_modules())
        return InTurn(exchange, pace, federation, schedule, hands_over=hands_over)

    def _pace(self, exchange: Exchange) -> Pace:
        """Who is late; it watches the wire only where there is a deadline."""
        cohort = self.scenario.cohort
        pace = Pace(self.clock, deadline_s=cohort.deadline_s, skips=cohort.late == "skip")
        if cohort.deadline_s is not None:
            exchange.wire.taps.append(pace)
        return pace

    def _evaluator(self, exchange: Exchange) -> Evaluator:
        splits = {split: self._samples(split).labels for split in self.scenario.splits}
        own_models = self.scenario.clients.heads == "per_client"
        return Evaluator(
            self.scenario.evaluate,
            exchange,
            splits,
            self.clients if own_models else None,
            self.scenario.seed,
        )

    def _server(self) -> Server:
        train = self.scenario.train
        return Server(
            self._trunk,
            self._tail if self.vanilla else None,
            self._server_stack,
            Learner(self._server_modules(), train.server, train.clip_norm),
            self.model.loss,
            seed=seed_for(self.scenario.seed, "server"),
            device=self.device,
            autocast=self.autocast,
        )

    def _server_modules(self) -> dict[str, nn.Module]:
        tail = {"tail": self._tail} if self.vanilla else {}
        return {"trunk": self._trunk, **tail, "method": self._server_stack.modules}

    def _client_parts(self, number: ClientId) -> ClientParts:
        """A client's modules and learners: its own, handed from one to the next, or averaged."""
        shared, own = self._shared_modules(), {}
        if self.averages:
            shared = {name: copy.deepcopy(module) for name, module in shared.items()}
        stack = self._shared_stack
        if self.scenario.clients.heads == "per_client":
            stack = self._stack("client", seed_for(self.scenario.seed, "client", number))
            own = {"head": self._own("head", number)}
            if not self.vanilla and "tail" not in shared:
                own["tail"] = self._own("tail", number)
            own["method"] = stack.modules
        elif self.averages:
            stack = self._stack("client", seed_for(self.scenario.seed, "client"))
            shared["method"] = stack.modules
        modules = {**shared, **own}
        learners = [self._learner(own)] if own else []
        travel = not self.averages and self.scenario.clients.handover == "state"
        common = self._common_learner(shared, travel=travel) if shared else None
        return ClientParts(
            modules["head"],
            modules.get("tail"),
            stack,
            (*learners, *([common] if common else [])),
            common,
            travel,
        )

    def _common_learner(self, modules: dict[str, nn.Module], *, travel: bool) -> Learner:
        """The learner of what is shared: one and the same for all, where its moments travel."""
        if not travel:
            return self._learner(modules)
        if self._shared_learner is None:
            self._shared_learner = self._learner(modules)
        return self._shared_learner

    def _learner(self, modules: dict[str, nn.Module]) -> Learner:
        train = self.scenario.train
        return Learner(modules, train.client, train.clip_norm)

    def _shared_modules(self) -> dict[str, nn.Module]:
        """What clients share, as it is before training."""
        tail = {} if self.vanilla else {"tail": self._tail}
        if self.scenario.clients.heads == "shared":
            return {"head": self._head, **tail, "method": self._shared_stack.modules}
        return tail if self.scenario.clients.shares_tail else {}

    def _own(self, segment: str, number: ClientId) -> nn.Module:
        """A client's own head or tail, from the common start or from its own stream."""
        if self.scenario.clients.start == "same":
            return copy.deepcopy(self._head if segment == "head" else self._tail)
        model = self.scenario.model
        build = model.build_head if segment == "head" else model.build_tail
        return self._placed(build(*self.input, self.scenario.seed, ("client", number)))

    def _owned_modules(self) -> list[nn.Module]:
        """The client modules of which each client has its own."""
        if self.scenario.clients.heads == "shared":
            return []
        tail = [] if self.vanilla or self.scenario.clients.shares_tail else [self._tail]
        return [self._head, *tail, *self._shared_stack.modules.values()]

    def _activations(self) -> int:
        few = 2
        images = torch.zeros(few, *self.data.info.shape, device=self.device)
        layers = nn.Sequential(self._head, self._trunk, self._tail)
        kept = activation_bytes(lambda: copy.deepcopy(layers)(images))
        weights = sum(p.nbytes for p in layers.parameters())
        return max(0, kept - weights) // few * self.scenario.train.batch_size

    def _stack(self, side: Side, seed: int) -> Stack:
        stack = build_stack(self.scenario.method, side, self.shapes, seed, self.device)
        stack.modules.to(self.device)
        return stack

    def _feed(self, batcher: Batcher, part: torch.Tensor, number: ClientId) -> Feed:
        train = self.scenario.train
        return Feed(
            batcher,
            part,
            batch_size=train.batch_size,
            seed=self.scenario.seed,
            client=number,
            drop_last=train.drop_last,
        )

    def _batcher(self, samples: Samples, *, augment: bool) -> Batcher:
        return Batcher(
            samples,
            mean=self.data.mean,
            std=self.data.std,
            augment=self.scenario.data.augment if augment else (),
            device=self.device,
            channels_last=self.scenario.train.channels_last,
        )

    def _exam(self, split: str) -> Exam:
        samples = self._samples(split)
        batcher = self._batcher(samples, augment=False)
        return Exam(batcher, len(samples), self.scenario.evaluate.batch_size)

    def _samples(self, split: str) -> Samples:
        samples = self.data.test if split == "test" else self.data.validation
        assert samples is not None, "scenario.splits names only splits that exist"
        return samples

    def _placed(self, module: nn.Module) -> nn.Module:
        module = module.to(self.device)
        if self.scenario.train.channels_last:
            module = module.to(memory_format=torch.channels_last)
        return module


@contextmanager
def in_inference(modules: Sequence[nn.Module]) -> Iterator[None]:
    """A context in which modules neither learn nor keep statistics."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    yield
    for module, training in zip(modules, before, strict=True):
        module.train(training)
