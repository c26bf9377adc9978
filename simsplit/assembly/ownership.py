"""Who owns what: which segments clients share, whose the tail is, which stream each one draws from.

Decided here and nowhere else. A client's streams depend on its number alone, so it is the same
whether ten or a hundred others exist, and wherever it is built.
"""

import copy
from functools import partial
from typing import Literal

import torch
from torch import nn

from simsplit.data import DataInfo
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.methods.base import Labels, Side
from simsplit.methods.stack import Stack, build_stack
from simsplit.methods.tokens import Tokens
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import CutNetwork, Owner, Shape
from simsplit.packets import ClientId
from simsplit.parties.changes import Changes
from simsplit.parties.client_end import ClientParts, Loss
from simsplit.parties.learner import Learner
from simsplit.scenario import Scenario
from simsplit.scenario.needs import refuse_idle, refuse_learning
from simsplit.schedules.aggregation import AveragingConfig
from simsplit.seeds import seed_for


class Ownership:
    """A scenario's modules, and the learners that own them."""

    def __init__(
        self,
        scenario: Scenario,
        info: DataInfo,
        device: torch.device,
        train: Samples | None = None,
        secret: int | None = None,
    ) -> None:
        """Without all clients' samples (`train`) nothing is known of how often tokens occur, and
        no text is replaced. What is a client's own is drawn by its `secret`, if it has one.
        """
        self.scenario, self.info, self.device = scenario, info, device
        self._drawn_by = scenario.seed if secret is None else secret
        self.topology = scenario.crossings
        self.averages = scenario.aggregation.kind != "none"
        self.model: CutNetwork = self._fresh_model()
        self.tokens = None if train is None else self._tokens(train)
        self.known_tail = self._known_tail()
        self.shapes: tuple[Shape, Shape] = (self.model.cut_shape, self.model.feature_shape)
        self.server_stack = self._stack("server", seed_for(scenario.seed, "server"))
        self.client_stack = self._stack("client", seed_for(scenario.seed, "client"))
        """The clients' common half of the methods, or the pattern of each one's own."""
        refuse_idle(scenario, self.client_stack)
        refuse_learning(scenario, self.server_stack)
        self._common: Learner | None = None

    @property
    def loss(self) -> Loss:
        """The task's loss in training, labels smoothed if the scenario says so."""
        smoothing = self.scenario.train.label_smoothing
        return partial(self.model.loss, smoothing=smoothing) if smoothing else self.model.loss

    def client_parts(self, number: ClientId) -> ClientParts:
        """A client's modules and learners: its own, handed from one to the next, or averaged."""
        shared, own = self.shared_modules(), {}
        if self.averages:
            shared = {name: copy.deepcopy(module) for name, module in shared.items()}
        stack = self.client_stack
        if self.scenario.clients.heads == "per_client":
            stack = self._stack("client", self.seed_of(number))
            own = {"head": self._own("head", number)}
            if self.topology.tail_with_client and "tail" not in shared:
                own["tail"] = self._own("tail", number)
            own["method"] = stack.modules
        elif self.averages:
            stack = self._stack("client", seed_for(self.scenario.seed, "client"))
            shared["method"] = stack.modules
        modules = {**shared, **own}
        learners = [self.client_learner(own)] if own else []
        travel = not self.averages and self.scenario.clients.handover == "state"
        common = self._common_learner(shared, travel=travel) if shared else None
        return ClientParts(
            head=modules["head"],
            tail=modules.get("tail"),
            stack=stack,
            learners=(*learners, *([common] if common else [])),
            shared=common,
            moments_travel=travel,
            features=self.shapes[1],
            servers=self.scenario.servers,
            changes=self.changes(common),
        )

    def changes(self, shared: Learner | None) -> Changes | None:
        """What codes shared weights at one end; None where they cross as they are."""
        aggregation = self.scenario.aggregation
        bits = aggregation.bits if isinstance(aggregation, AveragingConfig) else None
        if bits is None or shared is None or not shared.weights():
            return None
        return Changes(bits, self.scenario.seed, shared.weights())

    def _common_learner(self, modules: dict[str, nn.Module], *, travel: bool) -> Learner:
        """The learner of what is shared: one and the same for all, where its moments travel."""
        if not travel:
            return self.client_learner(modules)
        if self._common is None:
            self._common = self.client_learner(modules)
        return self._common

    def client_learner(self, modules: dict[str, nn.Module]) -> Learner:
        """A learner as clients have them."""
        train = self.scenario.train
        own = self.client_stack.optimizers if "method" in modules else {}
        return Learner(modules, train.client, train.clip_norm, own, self.scenario.proximal)

    def shared_modules(self) -> dict[str, nn.Module]:
        """What clients share, as it is before training."""
        tail = {"tail": self.model.tail} if self.topology.tail_with_client else {}
        if self.scenario.clients.heads == "shared":
            return {"head": self.model.head, **tail, "method": self.client_stack.modules}
        return tail if self.scenario.clients.shares_tail else {}

    def seed_of(self, number: ClientId) -> int:
        """Of all that a client draws for itself."""
        return seed_for(self._drawn_by, "client", number)

    def _own(self, segment: Literal["head", "tail"], number: ClientId) -> nn.Module:
        """A client's own head or tail, from the common start or from its own stream."""
        if self.scenario.clients.start == "same":
            return copy.deepcopy(self.model.head if segment == "head" else self.model.tail)
        shape, classes = self.info.shape, self.info.classes
        seed, scope = self._drawn_by, ("client", number)
        made = self.scenario.model.segment(segment, shape, classes, seed, scope)
        return self._placed(made, segment)

    def owned_modules(self) -> list[nn.Module]:
        """The client modules of which each client has its own."""
        if self.scenario.clients.heads == "shared":
            return []
        own = self.topology.tail_with_client and not self.scenario.clients.shares_tail
        tail = [self.model.tail] if own else []
        return [self.model.head, *tail, *self.client_stack.modules.values()]

    @property
    def may_rest(self) -> bool:
        """Whether a client is nothing but what its own learner holds, and is asked one at a time.

        Then many clients can take turns on a few live ones. Said of the plainest alone: nothing
        shared or averaged, no methods, whose objects may remember something, nobody malicious, all
        weights learned, images or tables, no attacks.
        """
        scenario = self.scenario
        weights = (p for module in self.owned_modules() for p in module.parameters())
        return (
            scenario.schedule.kind in ("round_robin", "per_client", "parallel")
            and scenario.aggregation.kind == "none"
            and not scenario.shares
            and not (scenario.method or scenario.detectors or scenario.attacks)
            and scenario.clients.malicious is None
            and not self.info.texts
            and all(weight.requires_grad for weight in weights)
        )

    def start(self, number: ClientId) -> dict[str, nn.Module]:
        """A client's own head and tail as they are before training, to be copied from."""
        start: dict[str, nn.Module] = {"head": self._own("head", number)}
        if self.topology.tail_with_client:
            start["tail"] = self._own("tail", number)
        return start

    def server_modules(self) -> dict[str, nn.Module]:
        """What the server owns."""
        served = ("trunk", "tail") if "tail" in self.topology.served else ("trunk",)
        segments = {name: getattr(self.model, name) for name in served}
        return {**segments, "method": self.server_stack.modules}

    def server_learner(self) -> Learner:
        """The optimizer of all that the server owns, its methods' parts included."""
        train = self.scenario.train
        own = self.server_stack.optimizers
        # only copies of a trunk are averaged, and only they start a round where others do
        proximal = self.scenario.proximal if self.scenario.aggregation.kind == "splitfed_v1" else 0
        return Learner(self.server_modules(), train.server, train.clip_norm, own, proximal)

    def joint(self) -> tuple[CutNetwork, tuple[Stack, Stack]]:
        """A second copy of the same model and of both sides' methods, for whoever compares."""
        client = self._stack("client", seed_for(self.scenario.seed, "client"))
        server = self._stack("server", seed_for(self.scenario.seed, "server"))
        client.hear(server.announce())
        return self._fresh_model(), (client, server)

    def _fresh_model(self) -> CutNetwork:
        model = self.scenario.model.build(self.info.shape, self.info.classes, self.scenario.seed)
        self._placed(model.head, "head")
        self._placed(model.trunk, "trunk")
        self._placed(model.tail, "tail")
        return model

    def _stack(self, side: Side, seed: int) -> Stack:
        served = isinstance(self.scenario.model, AdaptedClassifier)
        labels = Labels(self.info.classes, self.info.shares)
        stack = build_stack(
            self.scenario.method,
            side,
            self.shapes,
            seed,
            self.device,
            labels=labels,
            adapters=served,
            tokens=self.tokens if side == "client" else None,
            tail=self.known_tail if side == "client" else None,
        )
        stack.modules.to(self.device)
        return stack

    def _known_tail(self) -> nn.Module | None:
        """A copy of the tail as everybody knows it, for methods that ask for it."""
        if not any(each.reads_tail for each in self.scenario.method):
            return None
        return copy.deepcopy(self.model.tail).eval().requires_grad_(False)

    def _tokens(self, train: Samples) -> Tokens | None:
        """What methods that ask for it are told of the vocabulary, as it is before training."""
        asking = [n for n, each in enumerate(self.scenario.method) if each.reads_tokens]
        if not asking or not self.info.texts:
            return None
        table = getattr(getattr(self.model.head, "tokens", None), "weight", None)
        if not isinstance(table, torch.Tensor):
            kind = self.scenario.method[asking[0]].word
            raise ScenarioError(
                f"method.{asking[0]}.kind", f"{kind} needs a head that embeds tokens"
            )
        kept = table.detach().clone() if table.requires_grad else table.detach()
        reader = self.scenario.text_reader()
        counts = train.inputs.flatten().bincount(minlength=reader.size)[: reader.size]
        return Tokens(kept[: reader.size], counts, reader.special)

    def _placed(self, module: nn.Module, owner: Owner) -> nn.Module:
        """On the device, and frozen if it is not to learn."""
        module = module.to(self.device)
        if owner not in self.scenario.model.learning:
            module.requires_grad_(False)
        if self.scenario.train.channels_last:
            module = module.to(memory_format=torch.channels_last)
        return module
