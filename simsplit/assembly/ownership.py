"""Ownership decides which segments clients share, which side has the tail, and who draws from which
random stream.

No other place decides it. A client's streams depend on its number alone, so a client is the same in
every process and with any number of other clients.
"""

from functools import partial
from typing import Literal

import torch
from torch import nn

from simsplit.assembly.depths import Depths
from simsplit.data import DataInfo
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.methods.method import Labels, Side
from simsplit.methods.stack import Stack, build_stack
from simsplit.methods.tokens import Tokens
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import CutNetwork, Owner, Shape, SplitConfig
from simsplit.models.frozen import copy_learning, refuse_missing_dtype, share_frozen
from simsplit.models.recomputing import recompute_units
from simsplit.packets import ClientId, is_crowd
from simsplit.parties.changes import Changes
from simsplit.parties.client_end import ClientParts, Loss
from simsplit.parties.learner import Learner
from simsplit.parties.seats import Kept
from simsplit.scenario import Scenario
from simsplit.scenario.misfits import refuse_inspected_parts, refuse_second_loss
from simsplit.scenario.needs import refuse_idle, refuse_learning
from simsplit.schedules.aggregation import AveragingConfig
from simsplit.seeds import derive_seed


class Ownership:
    """The modules of a scenario, and the learners that own them."""

    def __init__(
        self,
        scenario: Scenario,
        info: DataInfo,
        device: torch.device,
        train: Samples | None = None,
        secret: int | None = None,
        *,
        with_trunk: bool = True,
    ) -> None:
        """Build the model and the methods of both sides.

        Without trunk, as at a client's own process, that segment need not have weights.

        `train` holds all clients' samples, whose tokens are counted for methods that replace them;
        without it no text is replaced. `secret` seeds a client's own draws if it is given.
        """
        self.scenario, self.info, self.device = scenario, info, device
        self._own_seed = scenario.seed if secret is None else secret
        self.topology = scenario.crossings
        self.averages = scenario.aggregation.kind != "none"
        self.with_trunk = with_trunk
        refuse_missing_dtype(scenario.model, device)
        self.model: CutNetwork = self._build_model()
        for segment in (self.model.head, self.model.trunk, self.model.tail):
            self._prepare(segment)
        self.depths = Depths(scenario, self.model, self._make_head, self._prepare)
        self.tokens = self._count_tokens(train)
        self.known_tail = self._copy_known_tail()
        self.shapes: tuple[Shape, Shape] = (self.model.cut_shape, self.model.feature_shape)
        self.server_stack = self._build_stack("server", derive_seed(scenario.seed, "server"))
        self.client_stack = self._build_stack("client", derive_seed(scenario.seed, "client"))
        """The client's side of the methods: shared by clients, or a pattern for each one's own."""
        refuse_idle(scenario, self.client_stack)
        refuse_inspected_parts(scenario, self.client_stack)
        refuse_second_loss(scenario, self.client_stack)
        refuse_learning(scenario, self.server_stack)
        self._common: Learner | None = None

    @property
    def loss(self) -> Loss:
        """The task's loss in training, with the scenario's label smoothing."""
        smoothing = self.scenario.train.label_smoothing
        return partial(self.model.loss, smoothing=smoothing) if smoothing else self.model.loss

    def build_client_parts(self, number: ClientId) -> ClientParts:
        """Build a client's modules and learners, own and shared ones."""
        shared, own = self.list_shared_modules(number), {}
        if self.averages:
            shared = {name: copy_learning(module) for name, module in shared.items()}
        stack = self.client_stack
        if self.scenario.clients.heads == "per_client":
            stack = self._build_stack("client", self.seed_of(number))
            own = {"head": self._build_own("head", number)}
            if self.topology.tail_with_client and "tail" not in shared:
                own["tail"] = self._build_own("tail", number)
            own["method"] = stack.modules
        elif self.averages:
            stack = self._build_stack("client", derive_seed(self.scenario.seed, "client"))
            shared["method"] = stack.modules
        modules = {**shared, **own}
        learners = [self.build_client_learner(own)] if own else []
        travel = not self.averages and self.scenario.clients.handover == "state"
        common = self._get_common_learner(shared, travel=travel) if shared else None
        return ClientParts(
            head=modules["head"],
            tail=modules.get("tail"),
            stack=stack,
            learners=(*learners, *([common] if common else [])),
            shared=common,
            moments_travel=travel,
            features=self.shapes[1],
            servers=self.scenario.servers,
            changes=self.build_changes(common),
        )

    def build_changes(self, shared: Learner | None) -> Changes | None:
        """Build the coder of shared weights for one end; None if they cross whole."""
        aggregation = self.scenario.aggregation
        bits = aggregation.bits if isinstance(aggregation, AveragingConfig) else None
        if bits is None or shared is None or not shared.weights():
            return None
        return Changes(bits, self.scenario.seed, shared.weights())

    def _get_common_learner(self, modules: dict[str, nn.Module], *, travel: bool) -> Learner:
        """Return the learner of shared modules: one for all clients if moments are handed over."""
        if not travel:
            return self.build_client_learner(modules)
        if self._common is None:
            self._common = self.build_client_learner(modules)
        return self._common

    def build_client_learner(self, modules: dict[str, nn.Module]) -> Learner:
        """Build a learner of these modules with the clients' optimizer."""
        train = self.scenario.train
        own = self.client_stack.optimizers if "method" in modules else {}
        return Learner(modules, train.client, train.clip_norm, own, self.scenario.proximal)

    def list_shared_modules(self, number: ClientId) -> dict[str, nn.Module]:
        """Return the modules that a client shares, with their weights before training."""
        tail = {"tail": self.model.tail} if self.topology.tail_with_client else {}
        if self.scenario.clients.heads == "shared":
            head = self.depths.get_head(number)
            return {"head": head, **tail, "method": self.client_stack.modules}
        return tail if self.scenario.clients.shares_tail else {}

    def seed_of(self, number: ClientId) -> int:
        """Return the seed of a client's own draws."""
        return derive_seed(self._own_seed, "client", number)

    def _build_own(self, segment: Literal["head", "tail"], number: ClientId) -> nn.Module:
        """Build a client's own head or tail, with the common start or from its own stream."""
        common = self.depths.get_head(number) if segment == "head" else self.model.tail
        if self.scenario.clients.start == "same":
            return copy_learning(common)
        shape, classes = self.info.shape, self.info.classes
        seed, scope = self._own_seed, ("client", number)
        made = self.depths.get_config(number).segment(segment, shape, classes, seed, scope)
        made = self._prepare(self._place(made, segment))
        # A pretrained model's frozen weights are the same for all clients.
        return share_frozen(made, common)

    def _make_head(self, model: SplitConfig) -> nn.Module:
        """Make the head of a deeper cut, as it is before training."""
        made = model.segment("head", self.info.shape, self.info.classes, self.scenario.seed)
        # Its first layers' frozen weights are those of the shallowest head.
        return share_frozen(self._prepare(self._place(made, "head")), self.model.head)

    def list_owned_modules(self, number: ClientId) -> list[nn.Module]:
        """Return the modules that a client has a copy of, as patterns."""
        if self.scenario.clients.heads == "shared":
            return []
        own = self.topology.tail_with_client and not self.scenario.clients.shares_tail
        tail = [self.model.tail] if own else []
        return [self.depths.get_head(number), *tail, *self.client_stack.modules.values()]

    @property
    def can_rest(self) -> bool:
        """Whether a client's learner holds all of its state, so that clients can share live seats.

        This holds only for plain scenarios: one cut, no methods (their objects may keep state),
        attacks or malicious clients, all weights learn, and samples are images or tables. Clients
        that share a segment rest only in a crowd: of fewer, each is live, as it costs little.
        """
        scenario = self.scenario
        weights = (p for module in self.list_owned_modules(0) for p in module.parameters())
        return (
            scenario.schedule.kind in ("round_robin", "per_client", "parallel")
            and (self._shares_nothing or (self._shares_all and is_crowd(scenario.clients.count)))
            and not self.depths.differ
            and not (scenario.method or scenario.detectors or scenario.attacks)
            and scenario.clients.malicious is None
            and not self.info.texts
            and all(weight.requires_grad for weight in weights)
        )

    def refuse_live(self) -> None:
        """Raise ScenarioError if clients are to rest on disk and have weights that never learn."""
        if self.scenario.rests_on_disk and not self.can_rest:
            raise ScenarioError(
                "engine.rest",
                "got disk; a head or tail with weights that never learn cannot rest: use memory",
            )

    @property
    def _shares_nothing(self) -> bool:
        return not (self.averages or self.scenario.shares)

    @property
    def _shares_all(self) -> bool:
        """Whether clients share all segments, and keep nothing of an average but copies of it."""
        scenario = self.scenario
        plain = not self.averages or (
            scenario.proximal == 0 and getattr(scenario.aggregation, "bits", None) is None
        )
        return scenario.clients.heads == "shared" and plain

    @property
    def belongings(self) -> Kept:
        """Return what each client keeps of its own between its turns."""
        weights: Literal["own", "copied", "common"] = "common"
        if self._shares_nothing:
            weights = "own"
        elif self.averages:
            weights = "copied"
        travels = weights == "common" and self.scenario.clients.handover == "state"
        return Kept(weights, moments=not travels)

    def start(self, number: ClientId) -> dict[str, nn.Module]:
        """Return a client's own head and tail with their weights before training."""
        start: dict[str, nn.Module] = {"head": self._build_own("head", number)}
        if self.topology.tail_with_client:
            start["tail"] = self._build_own("tail", number)
        return start

    def list_server_modules(self) -> dict[str, nn.Module]:
        """Return the modules that the server owns."""
        served = ("trunk", "tail") if "tail" in self.topology.served else ("trunk",)
        segments = {name: getattr(self.model, name) for name in served}
        return {**segments, "method": self.server_stack.modules}

    def build_server_learner(self) -> Learner:
        """Build the learner of all modules that the server owns, its methods' included."""
        train = self.scenario.train
        own = self.server_stack.optimizers
        # The proximal term needs an average to start from, which only copies of a trunk have.
        proximal = self.scenario.proximal if self.scenario.aggregation.kind == "splitfed_v1" else 0
        return Learner(self.list_server_modules(), train.server, train.clip_norm, own, proximal)

    def joint(self) -> tuple[CutNetwork, tuple[Stack, Stack]]:
        """Build a second copy of the model and of both sides' methods, for comparisons."""
        client = self._build_stack("client", derive_seed(self.scenario.seed, "client"))
        server = self._build_stack("server", derive_seed(self.scenario.seed, "server"))
        client.receive_announcements(server.announce())
        return self._build_model(), (client, server)

    def _build_model(self) -> CutNetwork:
        info, seed = self.info, self.scenario.seed
        model = self.scenario.model.build(
            info.shape, info.classes, seed, with_trunk=self.with_trunk
        )
        self._place(model.head, "head")
        self._place(model.trunk, "trunk")
        self._place(model.tail, "tail")
        return model

    def _build_stack(self, side: Side, seed: int) -> Stack:
        """Build one side's half of the scenario's methods."""
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

    def _copy_known_tail(self) -> nn.Module | None:
        """Return a copy of the publicly known tail for methods that ask for it, else None."""
        if not any(each.reads_tail for each in self.scenario.method):
            return None
        return copy_learning(self.model.tail).eval().requires_grad_(False)

    def _count_tokens(self, train: Samples | None) -> Tokens | None:
        """Return embeddings and counts of tokens before training, for methods that ask for them.

        A deployed server has no samples, and only needs the form of what clients hand over.
        """
        asking = [n for n, each in enumerate(self.scenario.method) if each.reads_tokens]
        if not asking or not self.info.texts:
            return None
        if train is None and not all(each.deployable for each in self.scenario.method):
            return None
        table = getattr(getattr(self.model.head, "tokens", None), "weight", None)
        if not isinstance(table, torch.Tensor):
            kind = self.scenario.method[asking[0]].kind_name
            raise ScenarioError(
                f"method.{asking[0]}.kind", f"{kind} needs a head that embeds tokens"
            )
        kept = table.detach().clone() if table.requires_grad else table.detach().float()
        reader = self.scenario.text_reader()
        inputs = torch.zeros(0, dtype=torch.int64) if train is None else train.inputs
        counts = inputs.flatten().bincount(minlength=reader.size)[: reader.size]
        return Tokens(kept[: reader.size], counts, reader.special)

    def _prepare(self, segment: nn.Module) -> nn.Module:
        """Let a segment that trains compute activations again, if the scenario says so."""
        return recompute_units(segment) if self.scenario.train.checkpointing else segment

    def _place(self, module: nn.Module, owner: Owner) -> nn.Module:
        """Move a module to the device, and freeze it unless its segment learns.

        One without weights stays on torch's device "meta".
        """
        if not any(weight.is_meta for weight in module.parameters()):
            module = module.to(self.device)
        if owner not in self.scenario.model.learning:
            module.requires_grad_(False)
        if self.scenario.train.channels_last:
            module = module.to(memory_format=torch.channels_last)
        return module
