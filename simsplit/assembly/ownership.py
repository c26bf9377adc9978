"""Ownership decides which segments clients share, which side has the tail, and who draws from which
random stream.

No other place decides it. A client's streams depend on its number alone, so a client is the same in
every process and with any number of other clients.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import nn

from simsplit.assembly.depths import Depths, place_segment, prepare_segment
from simsplit.assembly.tying import explain_copies, has_one_table
from simsplit.data import DataInfo
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId, is_crowd
from simsplit.methods.method import Labels, Side
from simsplit.methods.stack import Stack, build_stack
from simsplit.methods.tokens import Tokens
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import CutNetwork, Shape
from simsplit.models.frozen import copy_learning, refuse_missing_dtype, share_frozen
from simsplit.models.tied import tie
from simsplit.parties.changes import Changes
from simsplit.parties.client_end import ClientParts, Loss
from simsplit.parties.learner import Build, Learner
from simsplit.parties.seats import Kept
from simsplit.scenario import Scenario
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import refuse
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
        refuse(Occasion.MODEL, scenario, self.model)
        for segment in (self.model.head, self.model.trunk, self.model.tail):
            prepare_segment(segment, scenario)
        self.depths = Depths(scenario, info, self.model, device)
        self.tokens = self._count_tokens(train)
        self.known_tail: nn.Module | None = None
        """A copy of the publicly known tail, for methods that ask for it."""
        if any(each.reads_tail for each in scenario.method):
            self.known_tail = copy_learning(self.model.tail).eval().requires_grad_(False)
        self.shapes: tuple[Shape, Shape] = (self.model.cut_shape, self.model.feature_shape)
        self.server_stack = self._build_stack("server", derive_seed(scenario.seed, "server"))
        seed = scenario.seed
        self.party_stacks = {
            party: self._build_stack("server", derive_seed(seed, "server", "party", party), party)
            if party
            else self.server_stack
            for party in scenario.parties
        }
        """The server's side of each party's methods, which learn apart; none without parties."""
        self.client_stack = self._build_stack("client", derive_seed(scenario.seed, "client"))
        """The client's side of the methods: shared by clients, or a pattern for each one's own."""
        self._party_patterns = {
            party: self._build_stack("client", derive_seed(scenario.seed, "client"), party)
            for party in scenario.parties
            if scenario.select_methods(party) != scenario.select_methods(0)
        }
        """The same of parties whose methods are not those of the first."""
        for client in scenario.parties or (0,):
            refuse(Occasion.BUILT, scenario, *self.get_stacks(client))
        self.is_tied, self.copies = False, ""
        """Whether clients' heads and tails have one table of tokens, and why not in a tied model.
        """
        if has_one_table(scenario, self.model):
            self.copies = explain_copies(scenario, self.model, self.client_stack)
            self.is_tied = not self.copies and self.topology.tail_with_client
        if self.is_tied:
            self.depths.tie_heads()
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
            stack = self._build_stack("client", self.seed_of(number), number)
            own = {"head": self._build_own("head", number)}
            if self.has_tail(number) and "tail" not in shared:
                own["tail"] = self._build_own("tail", number)
            own["method"] = stack.modules
        elif self.averages:
            stack = self._build_stack("client", derive_seed(self.scenario.seed, "client"))
            shared["method"] = stack.modules
        self._tie(shared)
        self._tie(own)
        modules = {**shared, **own}
        learners = [self.build_client_learner(own, number)] if own else []
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
            has_labels=self.has_labels(number),
        )

    def get_stacks(self, number: ClientId) -> tuple[Stack, Stack]:
        """Return a pattern of a client's methods, and the server's side of them."""
        client = self._party_patterns.get(number, self.client_stack)
        return client, self.party_stacks.get(number, self.server_stack)

    def has_labels(self, number: ClientId) -> bool:
        """Return whether a client knows its samples' labels; of several parties one does."""
        return not self.scenario.parties or number == self.scenario.label_party

    def has_tail(self, number: ClientId) -> bool:
        """Return whether a client has a tail."""
        return self.topology.tail_with_client and self.has_labels(number)

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

    def build_client_learner(
        self, modules: dict[str, nn.Module], number: ClientId | None = None
    ) -> Learner:
        """Build a learner of these modules with the clients' optimizer, or with this one's own."""
        train = self.scenario.train
        optimizer = train.client if number is None else self.scenario.choose_optimizer(number)
        stack = self.get_stacks(0 if number is None else number)[0]
        own = stack.optimizers if "method" in modules else {}
        return Learner(modules, optimizer, train.clip_norm, own, self.scenario.proximal)

    def list_shared_modules(self, number: ClientId) -> dict[str, nn.Module]:
        """Return the modules that a client shares, with their weights before training."""
        tail = {"tail": self.model.tail} if self.topology.tail_with_client else {}
        if self.scenario.clients.heads == "shared":
            head = self.depths.get_head(number)
            return {"head": head, **tail, "method": self.client_stack.modules}
        return tail if self.scenario.clients.shares_tail else {}

    def list_held(self) -> dict[ClientId, frozenset[str]] | None:
        """List the names of the shared weights that each client has; None where cuts are one."""
        if not self.depths.differ:
            return None
        held: dict[ClientId, frozenset[str]] = {}
        for group in self.depths.list_kinds():
            learner = self.build_client_learner(self.list_shared_modules(group[0]))
            held |= dict.fromkeys(group, frozenset(learner.weights()))
        return held

    def seed_of(self, number: ClientId) -> int:
        """Return the seed of a client's own draws."""
        return derive_seed(self._own_seed, "client", number)

    def _build_own(self, segment: Literal["head", "tail"], number: ClientId) -> nn.Module:
        """Build a client's own head or tail, with the common start or from its own stream."""
        common = self.depths.get_head(number) if segment == "head" else self.model.tail
        if self.scenario.clients.start == "same":
            return copy_learning(common)
        shape, classes = self.info.of_party(number).shape, self.info.classes
        seed, scope = self._own_seed, ("client", number)
        made = self.depths.get_config(number).segment(segment, shape, classes, seed, scope)
        placed = place_segment(made, segment, self.scenario, self.device)
        made = prepare_segment(placed, self.scenario)
        # A pretrained model's frozen weights are the same for all clients.
        return share_frozen(made, common)

    def list_owned_modules(self, number: ClientId) -> list[nn.Module]:
        """Return the modules that a client has a copy of, as patterns."""
        if self.scenario.clients.heads == "shared":
            return []
        own = self.has_tail(number) and not self.scenario.clients.shares_tail
        tail = [self.model.tail] if own else []
        methods = self.get_stacks(number)[0].modules
        return [self.depths.get_head(number), *tail, *methods.values()]

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
            and not scenario.parties
            and (self._shares_nothing or (self._shares_all and is_crowd(scenario.clients.count)))
            and not self.depths.differ
            and not (scenario.method or scenario.detectors or scenario.attacks)
            and scenario.clients.malicious is None
            and not self.info.texts
            and scenario.train.dp is None
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
        """Whether nothing is handed on or averaged; copies of trunks are averaged too."""
        return not self.scenario.shares and self.scenario.aggregation.kind in ("none", "fused")

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
        if self.has_tail(number):
            start["tail"] = self._build_own("tail", number)
        self._tie(start)
        return start

    def list_server_modules(self) -> dict[str, nn.Module]:
        """Return the modules that the server owns."""
        served = ("trunk", "tail") if "tail" in self.topology.served else ("trunk",)
        segments = {name: getattr(self.model, name) for name in served}
        return {**segments, "method": self._merge_stacks()[0]}

    def build_server_learner(self) -> Learner:
        """Build the learner of all modules that the server owns, its methods' included."""
        train = self.scenario.train
        own = self._merge_stacks()[1]
        # The proximal term needs an average to start from, which only copies of a trunk have.
        proximal = self.scenario.proximal if self.scenario.aggregation.kind == "splitfed_v1" else 0
        return Learner(self.list_server_modules(), train.server, train.clip_norm, own, proximal)

    def joint(self) -> tuple[CutNetwork, tuple[Stack, Stack]]:
        """Build a second copy of the model and of both sides' methods, for comparisons."""
        client = self._build_stack("client", derive_seed(self.scenario.seed, "client"))
        server = self._build_stack("server", derive_seed(self.scenario.seed, "server"))
        client.receive_announcements(server.announce())
        model = self._build_model()
        self._tie({"head": model.head, "tail": model.tail})
        return model, (client, server)

    def _tie(self, modules: Mapping[str, nn.Module]) -> None:
        """Let a head and a tail of one owner have one table of tokens, if the model ties them."""
        if self.is_tied and {"head", "tail"} <= modules.keys():
            tie(modules["head"], modules["tail"])

    def _build_model(self) -> CutNetwork:
        info, seed = self.info, self.scenario.seed
        joined: Shape = ()
        if info.parts:
            joined, _ = self.scenario.model.join_shapes(info.parts, self.scenario.joining.join)
        model = self.scenario.model.build(
            info.of_party(0).shape, info.classes, seed, with_trunk=self.with_trunk, joined=joined
        )
        place_segment(model.head, "head", self.scenario, self.device)
        place_segment(model.trunk, "trunk", self.scenario, self.device)
        place_segment(model.tail, "tail", self.scenario, self.device)
        return model

    def _merge_stacks(self) -> tuple[nn.ModuleDict, Mapping[str, Build]]:
        """Return the modules of the server's side of all methods, and their own optimizers."""
        if len(self.party_stacks) < 2:
            return self.server_stack.modules, self.server_stack.optimizers
        modules, optimizers = nn.ModuleDict(), dict[str, Build]()
        for party, stack in self.party_stacks.items():
            modules.update({f"{party}_{name}": each for name, each in stack.modules.items()})
            optimizers |= {f"{party}_{name}": each for name, each in stack.optimizers.items()}
        return modules, optimizers

    def _build_stack(self, side: Side, seed: int, number: ClientId = 0) -> Stack:
        """Build one side's half of the methods at a client's cut."""
        served = isinstance(self.scenario.model, AdaptedClassifier)
        labels = Labels(self.info.classes, self.info.shares)
        stack = build_stack(
            self.scenario.select_methods(number),
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
