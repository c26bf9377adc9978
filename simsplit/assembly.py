"""From a scenario and its data to live parts: learners, clients, server, wire, evaluator.

Who owns what is decided here and nowhere else: which segments clients share, whose the tail is, and
which stream each owner's weights and methods draw from. A client's streams depend on its number
alone, so it is the same whether ten or a hundred others exist.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from simsplit.data import Prepared
from simsplit.data.batches import Batcher
from simsplit.data.samples import Samples
from simsplit.engine.pool import InlinePool, Pool
from simsplit.evaluation import Evaluator
from simsplit.methods.base import Side
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.fresh import Shape
from simsplit.models.split import SplitModel
from simsplit.packets import ClientId
from simsplit.parties.client import Client, ClientParts
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner
from simsplit.parties.precision import autocast_for
from simsplit.parties.server import Server
from simsplit.preflight import RUNTIME, Estimate, activation_bytes, trained_bytes
from simsplit.scenario import Scenario
from simsplit.schedules.exchange import EXCHANGES, Exchange
from simsplit.seeds import seed_for
from simsplit.wire import Wire


@dataclass
class Assembly:
    """The live parts of a run."""

    pool: Pool
    server: Server
    wire: Wire
    exchange: Exchange
    evaluator: Evaluator
    clients: range


class Assembler:
    """Builds the parts of one run, step by step."""

    def __init__(self, scenario: Scenario, data: Prepared, device: torch.device) -> None:
        self.scenario, self.data, self.device = scenario, data, device
        self.clients = range(scenario.clients.count)
        self.vanilla = scenario.topology == "vanilla"
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

    def estimate(self) -> Estimate:
        """Memory by purpose, before a client's own parts are made."""
        train, clients = self.scenario.train, self.scenario.clients
        own, shared = self._owned_modules()
        per_client = trained_bytes(own, train.client.slots)
        if clients.handover == "weights":
            moments = sum(p.nbytes for module in shared for p in module.parameters())
            per_client += moments * train.client.slots
        samples = [self.data.train, self.data.validation, self.data.auxiliary, self.data.test]
        server = [self._trunk, *self._server_stack.modules.values()]
        server += [self._tail] if self.vanilla else []
        return Estimate(
            {
                "clients' own parts": per_client * len(self.clients),
                "shared head and tail": trained_bytes(shared, train.client.slots),
                "server": trained_bytes(server, train.server.slots),
                "activations of a step": self._activations(),
                "images": sum(part.nbytes for part in samples if part is not None),
                "Python and torch": RUNTIME,
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

    def assemble(self) -> Assembly:
        """The live parts."""
        scenario = self.scenario
        server = self._server()
        pool = InlinePool(self._all_clients())
        wire = Wire()
        exchange = EXCHANGES[scenario.topology](pool, server, wire)
        own_models = scenario.clients.heads == "per_client"
        evaluator = Evaluator(
            scenario.evaluate,
            exchange,
            {split: self._split(split) for split in scenario.splits},
            self.clients if own_models else None,
            scenario.seed,
        )
        return Assembly(pool, server, wire, exchange, evaluator, self.clients)

    def _server(self) -> Server:
        modules: dict[str, nn.Module] = {"trunk": self._trunk}
        if self.vanilla:
            modules["tail"] = self._tail
        modules["method"] = self._server_stack.modules
        train = self.scenario.train
        return Server(
            self._trunk,
            self._tail if self.vanilla else None,
            self._server_stack,
            Learner(modules, train.server, train.clip_norm),
            self.model.loss,
            seed=seed_for(self.scenario.seed, "server"),
            device=self.device,
            autocast=self.autocast,
        )

    def _all_clients(self) -> dict[ClientId, Client]:
        data, scenario = self.data, self.scenario
        private = self._batcher(data.train, augment=True)
        public = None if data.auxiliary is None else self._batcher(data.auxiliary, augment=True)
        everything = torch.arange(0 if data.auxiliary is None else len(data.auxiliary))
        made = {}
        for number in self.clients:
            part = torch.as_tensor(data.parts[number])
            feeds = {"private": self._feed(private, part, number)}
            if public is not None:
                feeds["public"] = self._feed(public, everything, number)
            made[number] = Client(
                number,
                self._client_parts(number),
                feeds,
                self.model.loss,
                seed=seed_for(scenario.seed, "client", number),
                device=self.device,
                autocast=self.autocast,
            )
        return made

    def _client_parts(self, number: ClientId) -> ClientParts:
        """A client's modules and learners, its own or those that it shares."""
        clients, train = self.scenario.clients, self.scenario.train
        if clients.heads == "shared":
            modules = {"head": self._head, "tail": self._tail, "method": self._shared_stack.modules}
            return self._sharing(modules, self._shared_stack, ())
        stack = self._stack("client", seed_for(self.scenario.seed, "client", number))
        head = self._own("head", number)
        if self.vanilla or clients.shares_tail:
            learner = Learner(
                {"head": head, "method": stack.modules}, train.client, train.clip_norm
            )
            if self.vanilla:
                return ClientParts(head, None, stack, (learner,))
            return self._sharing({"tail": self._tail}, stack, (learner,), head=head)
        tail = self._own("tail", number)
        modules = {"head": head, "tail": tail, "method": stack.modules}
        return ClientParts(head, tail, stack, (Learner(modules, train.client, train.clip_norm),))

    def _sharing(
        self,
        modules: dict[str, nn.Module],
        stack: Stack,
        own: Sequence[Learner],
        head: nn.Module | None = None,
    ) -> ClientParts:
        """Parts of which `modules` are shared, with their moments or without."""
        if self.vanilla:
            modules.pop("tail", None)
        train, travel = self.scenario.train, self.scenario.clients.handover == "state"
        learner = self._shared_learner
        if learner is None or not travel:
            learner = self._shared_learner = Learner(modules, train.client, train.clip_norm)
        tail = None if self.vanilla else self._tail
        head = self._head if head is None else head
        return ClientParts(head, tail, stack, (*own, learner), (learner,), travel)

    def _own(self, segment: str, number: ClientId) -> nn.Module:
        """A client's own head or tail, from the common start or from its own stream."""
        if self.scenario.clients.start == "same":
            return copy.deepcopy(self._head if segment == "head" else self._tail)
        model = self.scenario.model
        build = model.build_head if segment == "head" else model.build_tail
        return self._placed(build(*self.input, self.scenario.seed, ("client", number)))

    def _owned_modules(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The client modules of which each client has its own, and those that all share."""
        method = list(self._shared_stack.modules.values())
        tail = [] if self.vanilla else [self._tail]
        if self.scenario.clients.heads == "shared":
            return [], [self._head, *tail, *method]
        if self.scenario.clients.shares_tail:
            return [self._head, *method], tail
        return [self._head, *tail, *method], []

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

    def _split(self, name: str) -> tuple[Batcher, torch.Tensor]:
        samples = self.data.test if name == "test" else self.data.validation
        assert samples is not None, "scenario.splits names only splits that exist"
        return self._batcher(samples, augment=False), samples.labels

    def _placed(self, module: nn.Module) -> nn.Module:
        module = module.to(self.device)
        if self.scenario.train.channels_last:
            module = module.to(memory_format=torch.channels_last)
        return module
