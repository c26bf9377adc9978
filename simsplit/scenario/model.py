"""A scenario: the frozen model that one YAML file becomes, and all that can be checked of it early.

The parts' own configs are composed here, so the JSON schema, the error messages and `simsplit list`
come from one place. What a user can get wrong is a ScenarioError that names the field.
"""

import copy
import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from simsplit.attacks import ATTACKS, AttackConfig, TargetsConfig
from simsplit.attacks.labels import LabelAttackConfig
from simsplit.config import Config
from simsplit.data import DataConfig, DataInfo, Prepared, prepare
from simsplit.data.blaming import blamed
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors import DETECTORS, DetectorConfig
from simsplit.engine.config import Engine, InlineEngine
from simsplit.errors import ScenarioError
from simsplit.evaluation import EvaluateConfig, columns_of, success_columns
from simsplit.methods import METHODS, MethodConfig
from simsplit.methods.order import refuse_disorder
from simsplit.methods.stack import sent_shapes
from simsplit.metrics import falls
from simsplit.models import Model, SimpleCNN
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import LaidOut, Shape
from simsplit.models.language import CausalLM
from simsplit.models.text_model import TextModel
from simsplit.models.tokens import Reader
from simsplit.network.profiles import NetworkConfig
from simsplit.observers import OBSERVERS, ObserverConfig
from simsplit.parties.config import ClientsConfig, TrainConfig
from simsplit.plugins import NO_PLUGINS, Given, Plugins, gathered
from simsplit.plugins.record import remind
from simsplit.scenario.adversaries import refuse_ambiguous
from simsplit.scenario.cells import refuse
from simsplit.scenario.controls import refuse_unequal, refuse_unknown
from simsplit.scenario.extending import extended
from simsplit.scenario.files import assign, dump, read
from simsplit.scenario.kinds import with_kinds
from simsplit.scenario.lengths import refuse_overlong
from simsplit.scenario.messages import explain, left_over, refuse_misread
from simsplit.scenario.misfits import (
    refuse_as_torch_does,
    refuse_missing_network,
    refuse_other_samples,
    refuse_unknown_metrics,
    refuse_unscorable,
    refuse_unserved,
)
from simsplit.scenario.needs import mixes_texts, refuse_classes, refuse_unmet
from simsplit.scenario.sessions import refuse_sessions
from simsplit.schedules.aggregation import Aggregation, NoAggregation
from simsplit.schedules.cohort import CohortConfig
from simsplit.schedules.config import RoundRobinConfig, Schedule
from simsplit.topologies import TOPOLOGIES, Topology, TopologyName


def _union(configs: Mapping[str, type[Config]]) -> Any:  # noqa: ANN401 - a type, made here
    """The configs of a registry as one type, told apart by `kind`."""
    together: Any = functools.reduce(operator.or_, configs.values())
    return together if len(configs) == 1 else Annotated[together, Discriminator("kind")]


if TYPE_CHECKING:
    AnyMethod = MethodConfig
    AnyDetector = DetectorConfig
    AnyAttack = AttackConfig
    AnyObserver = ObserverConfig
else:
    AnyMethod = _union(METHODS)
    AnyDetector = _union(DETECTORS)
    AnyAttack = _union(ATTACKS)
    AnyObserver = _union(OBSERVERS)


class StopConfig(Config):
    """Stop before the last round when a figure no longer improves."""

    metric: str = "validation_accuracy"
    """A column of the `rounds` table, such as validation_accuracy or test_loss."""
    patience: int = Field(default=10, ge=1)
    """Evaluations without improvement before stopping."""
    min_delta: float = Field(default=0.0, ge=0)
    """The smallest change that counts as an improvement."""

    @property
    def smaller_is_better(self) -> bool:
        """Losses, errors and perplexities fall, everything else rises."""
        return falls(self.metric)


class CheckpointConfig(Config):
    """When checkpoints are written, from which a run resumes."""

    every: int = Field(default=1, ge=0)
    """Rounds between checkpoints; the last round always writes one; 0: only the last."""
    keep: int = Field(default=2, ge=1)
    """How many to keep; with more than one, a damaged checkpoint can be passed over."""


class OutputConfig(Config):
    """Where run directories are made, and what is drawn in them."""

    root: Path = Path("runs")
    """Folder in which the run's own folder is made, unless `--out` names it."""
    figures: bool = True
    """Whether to draw the run's figures when it has finished, which takes about a second."""


class Scenario(Config):
    """One experiment, in full: running it again gives the same tables."""

    plugins: ClassVar[Plugins] = NO_PLUGINS
    """The plugins whose parts it may name: passed when it is loaded, never named in its file."""
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Letters, digits, dots, dashes and underscores, no dash or dot first; names the run."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw."""
    data: DataConfig = DataConfig()
    """The data set, and how it is divided among the clients."""
    model: Model = SimpleCNN()
    """The network, and where it is cut."""
    topology: TopologyName = "u_shaped"
    """u_shaped: clients keep tail and labels. vanilla: the server has the tail and sees labels.
    api: the server has all of a pretrained transformer; clients have adapters, a head and labels,
    and inputs are public."""
    servers: int = Field(default=1, ge=1)
    """Of topology: api, how many servers offer the same model and tell each other nothing. Messages
    of gradients go to them in turn: with m messages and m servers none sees two of one gradient,
    with 2 m none sees two steps in a row. Each that is asked gets tokens and adapters."""
    clients: ClientsConfig = ClientsConfig()
    """How many clients there are, and what they share."""
    method: tuple[AnyMethod, ...] = ()
    """What happens at the cut, in this order; empty: raw activations are sent."""
    schedule: Schedule = RoundRobinConfig()
    """Which client trains when, and for how long."""
    aggregation: Aggregation = NoAggregation()
    """What is averaged after each round; none: shared segments are handed from client to client."""
    cohort: CohortConfig = CohortConfig()
    """Which clients take part in a round; by default all of them."""
    detectors: tuple[AnyDetector, ...] = ()
    """How the server detects malicious clients, and how it responds."""
    attacks: tuple[AnyAttack, ...] = ()
    """How the server tries to recover clients' samples from what they send."""
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
    """Early stopping."""
    observers: tuple[AnyObserver, ...] = ()
    """What is notified of each round; a resumed run may have others."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """cpu, cuda, cuda:N, or auto (a GPU if there is one)."""
    threads: int | None = Field(default=None, ge=1)
    """torch threads of this process; null leaves torch's choice."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state is saved that a run resumes from."""
    output: OutputConfig = OutputConfig()
    """The folder for results."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - configs, or plain values
        """Fields as configs or plain values; ScenarioError, by field, where they will not do."""
        model = type(self)
        filled = with_kinds(values, model)
        try:
            super().__init__(**filled)
        except ValidationError as error:
            raise explain(error, model, filled) from None
        refuse_misread(filled, self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, checked as a whole."""
        if not update:
            return super().model_copy(deep=deep)
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**kept | dict(update))

    @field_validator("engine", "aggregation", "schedule", "model", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("method", "detectors", "attacks", "observers", mode="before")
    @classmethod
    def _from_words(cls, value: object) -> object:
        return [*map(cls._from_word, value)] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        refuse_unserved(self)
        refuse_unknown_metrics(self)
        refuse_other_samples(self)
        refuse_unscorable(self)
        refuse_unknown(self.evaluate.controls, self.method)
        refuse_sessions(self)
        refuse_unmet(self)
        refuse_disorder(self.method)
        refuse_ambiguous(
            self.detectors, self.attacks, self.clients, self.targets.client if self.attacks else 0
        )
        self.malicious  # noqa: B018 - raises where there is no such choice
        refuse_missing_network(self)
        for side in ("client", "server"):
            refuse_as_torch_does(self, side)
        with blamed("source"):
            info = self.data.describe()
        if info is not None and (self.model.at_hand or self._misfits(info)):
            self.shapes(info)
        return self

    def _misfits(self, info: DataInfo) -> bool:
        """Whether no network of its kind takes such samples, wherever it may be."""
        return isinstance(self.model, TextModel) and not info.texts

    @property
    def shared_field(self) -> str | None:
        """The field by which clients share something; None where they share nothing."""
        if self.clients.heads == "shared":
            return "clients.heads"
        tail = self.clients.shares_tail and self.crossings.tail_with_client
        return "clients.tail" if tail else None

    @property
    def crossings(self) -> Topology:
        """What crosses the cut, and who has which segment."""
        own: Mapping[str, Topology] = self.plugins.of("TOPOLOGIES")
        return own[self.topology] if self.topology in own else TOPOLOGIES[self.topology]

    @property
    def gradients_cross(self) -> bool:
        """Whether training sends gradients: not where clients train their own head alone."""
        return not isinstance(self.model, AdaptedClassifier) or "head" in self.model.learns

    @property
    def proximal(self) -> float:
        """FedProx's mu; 0 where nothing is averaged."""
        return getattr(self.aggregation, "proximal", 0.0)

    @property
    def shares(self) -> bool:
        """Whether clients share anything, by handing it round or by averaging."""
        return self.shared_field is not None

    @property
    def splits(self) -> tuple[Literal["test", "validation"], ...]:
        """The splits that are evaluated."""
        if self.evaluate.on is not None:
            return self.evaluate.on
        return ("validation", "test") if self.data.validation else ("test",)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What an evaluation reports."""
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
        names = columns_of(self.splits, self.metrics, self.evaluate.controls)
        aimed = self.clients.malicious is not None and self.clients.malicious.has_aim
        own = self.clients.heads == "per_client"
        return [*names, *success_columns(aimed=aimed, own=own)]

    @property
    def aims(self) -> TargetsConfig:
        """The targets, in the order in which the attacks want them."""
        if self.targets.order is not None:
            return self.targets
        mixed = any(isinstance(attack, LabelAttackConfig) for attack in self.attacks)
        return self.targets.model_copy(update={"order": "mixed" if mixed else "data"})

    @property
    def malicious(self) -> list[int]:
        """Numbers of the malicious clients, as drawn by the seed."""
        if self.clients.malicious is None:
            return []
        trusted = {client for detector in self.detectors for client in detector.trusted}
        return self.clients.malicious.chosen(self.clients.count, self.seed, trusted)

    def shapes(self, info: DataInfo) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
        """(cut, features) as the model has them, and as they cross the wire."""
        if info.texts and not isinstance(self.model, TextModel):
            raise ScenarioError(
                "model.kind",
                f"{self.model.kind} takes images, got texts; use causal_lm or sequence_classifier",
            )
        if isinstance(self.model, LaidOut) and self.model.images_only and len(info.shape) != 3:
            raise ScenarioError(
                "model.kind",
                f"{self.model.kind} takes images, got samples of shape {info.shape}; use mlp",
            )
        refuse_classes(self, info.classes)
        whole = self.model.shapes(info.shape)
        if isinstance(self.model, TextModel):
            refuse_overlong(self.data, self.method, self.model.measures()[2])
        refuse_unequal(self.evaluate.controls, *whole)
        return whole, sent_shapes(self.method, whole)

    @property
    def reads_texts(self) -> bool:
        """Whether its samples are texts."""
        return isinstance(self.model, TextModel)

    def text_reader(self) -> Reader:
        """How its model reads texts."""
        assert isinstance(self.model, TextModel), "asked of texts alone"
        return self.model.reader()

    def prepared(self) -> Prepared:
        """Its data, loaded and dealt out."""
        reader = self.text_reader() if self.reads_texts else None
        mixes = mixes_texts(self.method)
        return prepare(self.data, self.clients.count, self.seed, reader, mixes=mixes)

    def yaml(self) -> str:
        """The scenario, resolved and complete: what is saved with a run and replays it."""
        return dump(self.model_dump(mode="json"))

    def identity(self) -> str:
        """What a checkpoint must agree with, as text."""
        return dump(self.identified())

    def identified(self) -> dict[str, Any]:
        """All fields but those that a resumed run may change."""
        values = self.model_dump(mode="json")
        for name in ("output", "checkpoint", "threads", "device", "stop", "engine", "observers"):
            del values[name]
        if not self.train.lr_schedule.stretches:
            for name in ("rounds", "epochs"):
                del values["schedule"][name]
        return values


def load_scenario(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    plugins: Given = (),
) -> Scenario:
    """Read a scenario file; `overrides` maps dotted fields to values, or to YAML as `--set` does.

    `plugins` are modules with parts of your own: by name, as .py files, or imported.

    >>> load_scenario("scenarios/quickstart.yaml", {"clients.count": 4})  # doctest: +SKIP
    """
    values = read(Path(path), overrides or {})
    refuse(values, Path(path))
    known = gathered(plugins)
    try:
        return parse(values, known)
    except ScenarioError as error:
        remind(error, Path(path).parent, known)  # a run's own file may need plugins
        raise left_over(error, overrides or {}) from None


def parse(values: Mapping[str, Any], plugins: Given = ()) -> Scenario:
    """A scenario from plain values, which may name the parts of plugins."""
    return scenario_class(plugins)(**{str(name): value for name, value in values.items()})


def scenario_of(
    given: "Scenario | Mapping[str, Any] | str | Path",
    changes: Mapping[str, Any],
    plugins: Given = (),
) -> Scenario:
    """A scenario from a file, from its fields or as it is, with some fields changed."""
    if isinstance(given, str | Path):
        return load_scenario(given, changes, plugins)
    if isinstance(given, Scenario):
        if not changes:
            return given
        values, plugins = given.model_dump(mode="json"), given.plugins
    else:
        values = copy.deepcopy(dict(given))
    for field, value in changes.items():
        assign(values, field, value)
    return parse(values, plugins)


def scenario_class(plugins: Given = ()) -> type[Scenario]:
    """Scenario, with the kinds of plugins wherever it has parts."""
    return extended(Scenario, gathered(plugins))
