"""The fields of a scenario, and properties that follow from them alone.

The configs of all parts are composed here, so the JSON schema, the error messages and
`simsplit list` have one source. `misfits`, `needs` and `sessions` refuse fields that do not fit
each other; `model` calls them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from simsplit.attacks import ATTACKS, AttackConfig, TargetsConfig
from simsplit.config import Config, join_configs
from simsplit.data import DataConfig
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.engine.engine_config import Engine, InlineEngine
from simsplit.evaluation.evaluator import EvaluateConfig, list_figure_columns, list_success_columns
from simsplit.methods import METHODS, MethodConfig
from simsplit.methods.method import NoiseSource
from simsplit.metrics import is_lower_better
from simsplit.models import Model, SimpleCNN
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.language import CausalLM
from simsplit.models.text_model import TextModel
from simsplit.models.tokenizers import Reader
from simsplit.network.profiles import NetworkConfig
from simsplit.observers import OBSERVERS, ObserverConfig
from simsplit.parties.client_cuts import Place, assign_cuts
from simsplit.parties.train_config import ClientsConfig, TrainConfig
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.schedules.aggregation import Aggregation, NoAggregation
from simsplit.schedules.cohort import CohortConfig
from simsplit.schedules.schedule import RoundRobinConfig, Schedule
from simsplit.topologies import TOPOLOGIES, USUAL, Topology, TopologyName

# mypy cannot follow a union that is made from a registry.
if TYPE_CHECKING:
    AnyMethod = MethodConfig
    AnyDetector = DetectorConfig
    AnyAttack = AttackConfig
    AnyObserver = ObserverConfig
else:
    AnyMethod = join_configs(METHODS.values())
    AnyDetector = join_configs(DETECTORS.values())
    AnyAttack = join_configs(ATTACKS.values())
    AnyObserver = join_configs(OBSERVERS.values())


class StopConfig(Config):
    """Stop before the last round when a figure no longer improves."""

    metric: str = "validation_accuracy"
    """A column of the `rounds` table, such as validation_accuracy or test_loss."""
    patience: int = Field(default=10, ge=1)
    """Number of evaluations without improvement after which the run stops."""
    min_delta: float = Field(default=0.0, ge=0)
    """The smallest change that counts as an improvement, in the metric's unit."""

    @property
    def smaller_is_better(self) -> bool:
        """Whether a fall is an improvement, as for losses, errors and perplexities."""
        return is_lower_better(self.metric)


class CheckpointConfig(Config):
    """When checkpoints are written, from which a run resumes."""

    every: int = Field(default=1, ge=0)
    """Rounds between checkpoints; the last round always writes one; 0: only the last."""
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints to keep. With more than one a run can resume although the newest is
    damaged."""


class OutputConfig(Config):
    """Where run directories are made, and whether figures are drawn in them."""

    root: Path = Path("runs")
    """Folder in which the run's own folder is made, unless `--out` names it."""
    figures: bool = True
    """Whether to draw the run's figures when it has finished, which takes about a second."""


class ScenarioFields(Config):
    """Base of a scenario: its fields, without checks between them."""

    plugins: ClassVar[Plugins] = NO_PLUGINS
    """The plugins whose parts a scenario may name. They are passed when it is loaded; its file does
    not name them."""
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Letters, digits, dots, dashes and underscores, with a letter or digit first; names the
    run."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw."""
    data: DataConfig = DataConfig()
    """The data set, and how it is divided among the clients."""
    model: Model = SimpleCNN()
    """The network, and where it is cut."""
    topology: TopologyName = USUAL
    """u_shaped: clients keep tail and labels. vanilla: the server has the tail and sees labels.
    api: the server has all of a pretrained transformer; clients have adapters, a head and labels,
    and inputs are public."""
    servers: int = Field(default=1, ge=1)
    """Number of servers under topology: api that offer the same model and share nothing. The
    messages of a gradient go to them in turn: with m messages and m servers none sees two of one
    gradient, with 2 m none sees two steps in a row. Each server that is asked gets tokens and
    adapters."""
    clients: ClientsConfig = ClientsConfig()
    """The number of clients, and the segments that they share."""
    method: tuple[AnyMethod, ...] = ()
    """Methods at the cut, applied in this order; empty: raw activations are sent."""
    schedule: Schedule = RoundRobinConfig()
    """Which client trains when, and for how long."""
    aggregation: Aggregation = NoAggregation()
    """What is averaged after each round; none: shared segments are handed from client to client."""
    cohort: CohortConfig = CohortConfig()
    """Which clients take part in a round; by default all of them."""
    detectors: tuple[AnyDetector, ...] = ()
    """How the server detects malicious clients, and how it responds."""
    attacks: tuple[AnyAttack, ...] = ()
    """How the server tries to recover clients' samples and labels from the packets they send."""
    targets: TargetsConfig = TargetsConfig()
    """The samples that attacks try to recover."""
    network: NetworkConfig | None = None
    """Speeds of devices and links, for simulated time in the tables; null: no simulated time."""
    engine: Engine = InlineEngine()
    """Where clients run: in this process, or on several hosts. Results are the same."""
    train: TrainConfig = TrainConfig()
    """Batches, optimizers and precision."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """When and how the model is scored."""
    stop: StopConfig | None = None
    """Early stopping; null: the run takes all of its rounds."""
    observers: tuple[AnyObserver, ...] = ()
    """Observers that are notified of each round; a resumed run may have others."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """cpu, cuda, cuda:N, or auto (a GPU if there is one)."""
    noise: NoiseSource = "cpu"
    """Where methods draw their noise: `cpu` copies it to the device, and draws the same on every
    device; `device` draws it there, so that results depend on the kind of device."""
    threads: int | None = Field(default=None, ge=1)
    """torch threads of this process; null leaves torch's choice."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state from which a run resumes is saved."""
    output: OutputConfig = OutputConfig()
    """The folder for results."""

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
        return own[self.topology] if self.topology in own else TOPOLOGIES[self.topology]

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
        return self.clients.heads == "per_client" or self.has_own_cuts

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
