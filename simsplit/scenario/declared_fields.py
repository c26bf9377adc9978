"""The fields that a scenario declares.

The configs of all parts are composed here, so the JSON schema, the error messages and
`simsplit list` have one source.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from simsplit.attacks import ATTACKS, AttackConfig, TargetsConfig
from simsplit.config import MOST_PARTS, Config, join_configs
from simsplit.data import DataConfig
from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.engine.engine_config import Engine, InlineEngine
from simsplit.evaluation.evaluator import EvaluateConfig
from simsplit.methods import METHODS, MethodConfig
from simsplit.methods.method import NoiseSource
from simsplit.metrics import find_better
from simsplit.models import Model, SimpleCNN
from simsplit.network.profiles import NetworkConfig
from simsplit.observers import OBSERVERS, ObserverConfig
from simsplit.parties.train_config import ClientsConfig, TrainConfig, VerticalConfig
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.schedules.aggregation import Aggregation, NoAggregation
from simsplit.schedules.cohort import CohortConfig
from simsplit.schedules.schedule import RoundRobinConfig, Schedule
from simsplit.topologies import USUAL, TopologyName

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

    metric: str | None = "validation_accuracy"
    """A column of the `rounds` table, such as validation_accuracy or test_loss; null, and where
    only `epsilon` is given: no figure."""
    patience: int = Field(default=10, ge=1)
    """Number of evaluations without improvement after which the run stops."""
    min_delta: float = Field(default=0.0, ge=0)
    """The smallest change that counts as an improvement, in the metric's unit."""

    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A budget of differential privacy: the run ends before the round in which a client would pass
    it, and no client goes on beyond it; null: none."""

    @model_validator(mode="before")
    @classmethod
    def _leave_metric_out(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("epsilon") is not None:
            return {"metric": None, **given}
        return given

    @model_validator(mode="after")
    def _refuse_nothing(self) -> Self:
        if self.metric is None and self.epsilon is None:
            raise ValueError("give metric or epsilon, got neither")
        return self

    @property
    def smaller_is_better(self) -> bool:
        """Whether a fall is an improvement, as for losses, errors, perplexities and backdoors."""
        return self.metric is not None and find_better(self.metric) == "less"


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


class DeclaredFields(Config):
    """The fields of a scenario, without checks between them."""

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
    and inputs are public. vertical: clients are parties that hold columns of the same samples."""
    vertical: VerticalConfig | None = None
    """Under topology: vertical, which party has the labels, and how heads are joined; null: the
    last party, side by side."""
    servers: int = Field(default=1, ge=1)
    """Number of servers under topology: api that offer the same model and share nothing. The
    messages of a gradient go to them in turn: with m messages and m servers none sees two of one
    gradient, with 2 m none sees two steps in a row. Each server that is asked gets tokens and
    adapters."""
    clients: ClientsConfig = ClientsConfig()
    """The number of clients, and the segments that they share."""
    method: tuple[AnyMethod, ...] = Field(default=(), max_length=MOST_PARTS)
    """Methods at the cut, applied in this order; empty: raw activations are sent."""
    schedule: Schedule = RoundRobinConfig()
    """Which client trains when, and for how long."""
    aggregation: Aggregation = NoAggregation()
    """What is averaged after each round; none: shared segments are handed from client to client."""
    cohort: CohortConfig = CohortConfig()
    """Which clients take part in a round; by default all of them."""
    detectors: tuple[AnyDetector, ...] = Field(default=(), max_length=MOST_PARTS)
    """How the server detects malicious clients, and how it responds."""
    attacks: tuple[AnyAttack, ...] = Field(default=(), max_length=MOST_PARTS)
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
    observers: tuple[AnyObserver, ...] = Field(default=(), max_length=MOST_PARTS)
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
