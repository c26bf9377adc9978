"""Properties that follow from a scenario's fields alone.

`misfits`, `needs` and `sessions` refuse fields that do not fit each other; `model` calls them.
"""

from collections.abc import Mapping
from typing import Literal

from simsplit.attacks import AttackConfig, TargetsConfig
from simsplit.attacks.threat import Role
from simsplit.client_names import ClientNames
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.engine.engine_config import InlineEngine
from simsplit.evaluation.evaluator import list_figure_columns, list_success_columns
from simsplit.legs import ClientId
from simsplit.methods import MethodConfig
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.language import CausalLM
from simsplit.models.text_model import TextModel
from simsplit.models.tokenizers import Reader
from simsplit.parties.client_cuts import Place, assign_cuts
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.parties.train_config import VerticalConfig
from simsplit.scenario.declared_fields import DeclaredFields
from simsplit.topologies import TOPOLOGIES, Topology
from simsplit.wire import Viewpoint


class ScenarioFields(DeclaredFields):
    """Base of a scenario: its fields and what follows from them, without checks between them."""

    def find_viewpoint(self, attack: AttackConfig) -> Viewpoint:
        """Return the place at which an attack sees packets.

        SimsplitError is raised for a client of unknown name.
        """
        who = attack.sitting
        return Viewpoint(ClientNames(self.party_names).find(who) if who else None)

    def find_role(self, viewpoint: Viewpoint) -> Role:
        """Return what an attacker at this place is."""
        if viewpoint.client is None:
            return Role.SERVER
        if not self.parties:
            return Role.CLIENT
        return Role.READER if viewpoint.client == self.label_party else Role.PARTY

    def choose_optimizer(self, client: ClientId) -> OptimizerConfig:
        """Return the optimizer of a client, which an attacker at its seat may have changed."""
        optimizer: OptimizerConfig = self.train.client
        for attack in self.attacks:
            if attack.sitting and self.find_viewpoint(attack).client == client:
                optimizer = attack.change_optimizer(optimizer)
        return optimizer

    @property
    def shared_field(self) -> str | None:
        """The field by which clients share a segment; None where they share nothing."""
        if self.clients.heads == "shared":
            return "clients.heads"
        tail = self.clients.shares_tail and self.crossings.tail_with_client
        return "clients.tail" if tail else None

    @property
    def crossings(self) -> Topology:
        """The topology: which legs cross the cut, and which side has which segment."""
        own: Mapping[str, Topology] = self.plugins.of("TOPOLOGIES")
        chosen = own[self.topology] if self.topology in own else TOPOLOGIES[self.topology]
        at_server = chosen.at_server if self.joining.labels == "server" else None
        return chosen if at_server is None else at_server

    @property
    def joining(self) -> VerticalConfig:
        """How parties' heads are joined, where clients are parties."""
        return self.vertical or VerticalConfig()

    @property
    def parties(self) -> range:
        """The clients that take each step together, by number; none where a step is of one."""
        return range(self.clients.count if self.crossings.joint else 0)

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the parties, as the scenario or its data give them."""
        return self.clients.names or self.data.party_names

    @property
    def label_party(self) -> int:
        """The number of the party that has the labels; ScenarioError is raised if there is none."""
        known, count = self.data.label_party, self.clients.count
        return self.joining.find_party(self.party_names, known, count)

    @property
    def reader(self) -> ClientId | None:
        """The number of the party that alone has the labels; None: each client has its own."""
        return self.label_party if self.parties else None

    def select_methods(self, client: ClientId) -> dict[int, MethodConfig]:
        """Return the methods at a client's cut, by their places in `method`.

        SimsplitError is raised for a party of unknown name.
        """
        return {
            place: each
            for place, each in enumerate(self.method)
            if self.find_party(each) in (None, client)
        }

    def find_party(self, method: MethodConfig) -> ClientId | None:
        """Return the party at whose cut alone a method acts; None: it acts at every client's.

        SimsplitError is raised for a party of unknown name.
        """
        if method.by is None:
            return None
        return ClientNames(self.party_names).find(method.by.partition(" ")[2])

    @property
    def has_own_methods(self) -> bool:
        """Whether parties' chains of methods differ."""
        return any(each.by for each in self.method)

    def find_read_client(self, attack: AttackConfig) -> ClientId:
        """Return the client whose packets of the targets an attack reads.

        SimsplitError is raised for a client of unknown name.
        """
        seat = self.find_viewpoint(attack).client
        if seat is not None:
            return seat
        # Of parties, the one with the labels alone is sent features.
        reads = self.parties and attack.threat.asks_gradients
        return self.label_party if reads else self.targets.client

    @property
    def epsilon_limit(self) -> float | None:
        """The epsilon beyond which no client goes on; None: there is no budget."""
        return None if self.stop is None else self.stop.epsilon

    @property
    def gradients_cross(self) -> bool:
        """Whether training sends gradients; clients that train a tail alone send none."""
        return not isinstance(self.model, AdaptedClassifier) or "head" in self.model.learns

    @property
    def proximal(self) -> float:
        """FedProx's mu; 0 where nothing is averaged."""
        return getattr(self.aggregation, "proximal", 0.0)

    @property
    def places(self) -> list[Place]:
        """Each client's cut; empty where the model can have one cut alone."""
        if not (field := self.model.cut_field):
            return []
        cuts, count = self.clients.cut, self.clients.count
        default: Place = getattr(self.model, field)
        if cuts is None:
            return [default] * count
        words: list[list[str]] = [[] for _ in range(count)]
        if isinstance(cuts, Mapping):
            named = self.clients.names or ()
            devices = self.network.draw_devices(count, self.seed) if self.network else ()
            for known in (named, devices):
                for own, word in zip(words, known, strict=False):
                    own.append(word)
        return assign_cuts(cuts, words, default)

    @property
    def has_own_cuts(self) -> bool:
        """Whether clients' cuts differ."""
        return self.clients.cut is not None and len(set(self.places)) > 1

    @property
    def has_own_models(self) -> bool:
        """Whether clients' models differ, by their weights or their cuts."""
        own = self.clients.heads == "per_client" or self.has_own_cuts
        return own and not self.crossings.joint  # parties have one model together

    @property
    def shares(self) -> bool:
        """Whether clients share a segment, by handing it on or by averaging."""
        return self.shared_field is not None

    @property
    def rests_on_disk(self) -> bool:
        """Whether clients rest on disk between their turns."""
        return self.inline_engine.rest == "disk"

    @property
    def inline_engine(self) -> InlineEngine:
        """The engine of a run of this in one process: where clients rest stays as it is."""
        return self.engine if isinstance(self.engine, InlineEngine) else InlineEngine()

    @property
    def splits(self) -> tuple[Literal["test", "validation"], ...]:
        """The splits that are evaluated."""
        if self.evaluate.on is not None:
            return self.evaluate.on
        return ("validation", "test") if self.data.validation else ("test",)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that an evaluation reports."""
        if self.evaluate.metrics is not None:
            return self.evaluate.metrics
        if not isinstance(self.model, CausalLM):
            return ("accuracy", "balanced_accuracy", "loss")
        source = self.data.source
        chosen = isinstance(source, TextTable) and isinstance(source.task, Classification)
        return ("loss", "perplexity", "accuracy", *(("answers",) if chosen else ()))

    @property
    def figures(self) -> list[str]:
        """The evaluation columns of the `rounds` table."""
        names = list_figure_columns(self.splits, self.metrics, self.evaluate.controls)
        aimed = self.clients.malicious is not None and self.clients.malicious.has_aim
        return [*names, *list_success_columns(aimed=aimed, own=self.has_own_models)]

    @property
    def aims(self) -> TargetsConfig:
        """The targets' config, with the order that the attacks need."""
        if self.targets.order is not None:
            return self.targets
        mixed = any(attack.mixes_targets for attack in self.attacks)
        return self.targets.model_copy(update={"order": "mixed" if mixed else "data"})

    @property
    def malicious(self) -> list[int]:
        """Numbers of the malicious clients, drawn from the seed."""
        if self.clients.malicious is None:
            return []
        # A detector measures others against trusted clients, so these stay honest.
        trusted = {client for detector in self.detectors for client in detector.trusted}
        return self.clients.malicious.choose(self.clients.count, self.seed, trusted)

    @property
    def reads_texts(self) -> bool:
        """Whether the samples are texts."""
        return isinstance(self.model, TextModel)

    def text_reader(self) -> Reader:
        """Return the reader that turns texts into tokens for the scenario's model."""
        assert isinstance(self.model, TextModel), "only models of texts have a reader"
        return self.model.make_reader()
