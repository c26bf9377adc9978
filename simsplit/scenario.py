"""A scenario: the frozen model that one YAML file becomes, and all that can be checked of it early.

The parts' own configs are composed here, so the JSON schema, the error messages and `simsplit list`
come from one place. What a user can get wrong is a ScenarioError that names the field.
"""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, ValidationError, create_model, model_validator

from simsplit.config import Config
from simsplit.data import DataConfig
from simsplit.data.sources import DataInfo
from simsplit.errors import ScenarioError
from simsplit.evaluation import EvaluateConfig
from simsplit.methods import METHODS, MethodConfig
from simsplit.methods.stack import sent_shapes
from simsplit.models import Model, SimpleCNN
from simsplit.models.fresh import Shape
from simsplit.parties.config import ClientsConfig, TrainConfig
from simsplit.scenario_errors import explain
from simsplit.scenario_files import dump, read
from simsplit.schedules.sequential import RoundRobinConfig, Schedule


def _union(configs: Mapping[str, type[MethodConfig]]) -> Any:  # noqa: ANN401 - a type, made here
    """The configs of a registry as one type, told apart by `kind`."""
    return Annotated[functools.reduce(operator.or_, configs.values()), Discriminator("kind")]


if TYPE_CHECKING:
    AnyMethod = MethodConfig
else:
    AnyMethod = _union(METHODS)


class StopConfig(Config):
    """Stop before the last round when a figure no longer improves."""

    metric: str = "validation_accuracy"
    """A column of the `rounds` table, such as validation_accuracy or test_loss."""
    patience: int = Field(default=10, ge=1)
    """Evaluations without improvement before stopping."""
    min_delta: float = Field(default=0.0, ge=0)
    """What counts as an improvement."""

    @property
    def smaller_is_better(self) -> bool:
        """Losses fall, everything else rises."""
        return self.metric.endswith("loss")


class CheckpointConfig(Config):
    """How often the state that a run resumes from is written."""

    every: int = Field(default=1, ge=0)
    """Rounds between checkpoints; the last round always writes one; 0: only the last."""
    keep: int = Field(default=2, ge=1)
    """How many to keep; more than one survives a torn disk."""


class OutputConfig(Config):
    """Where run directories go."""

    root: Path = Path("runs")
    """Folder in which the run's own folder is made, unless `--out` names it."""


class Scenario(Config):
    """One experiment, whole: replaying it gives the same tables."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run directory; letters, digits, dots, dashes and underscores."""
    seed: int = Field(default=0, ge=0)
    """Every random draw's source."""
    data: DataConfig = DataConfig()
    """What is trained on, and how it is dealt out."""
    model: Model = SimpleCNN()
    """The network, and where it is cut."""
    topology: Literal["u_shaped", "vanilla"] = "u_shaped"
    """u_shaped: clients keep tail and labels. vanilla: the server holds the tail and sees labels."""
    clients: ClientsConfig = ClientsConfig()
    """The clients."""
    method: tuple[AnyMethod, ...] = ()
    """What happens at the cut, in order; empty is raw."""
    schedule: Schedule = RoundRobinConfig()
    """Who trains when, and for how long."""
    train: TrainConfig = TrainConfig()
    """Batches, optimizers, precision."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """When and how the run is scored."""
    stop: StopConfig | None = None
    """Early stopping."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """cpu, cuda, cuda:N, or auto (a GPU if there is one)."""
    threads: int | None = Field(default=None, ge=1)
    """torch threads of this process; null leaves torch's choice."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What a run resumes from."""
    output: OutputConfig = OutputConfig()
    """Where results go."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.stop is not None and self.stop.metric not in self.figures:
            raise ScenarioError(
                "stop.metric", f"must be one of {', '.join(self.figures)}, got '{self.stop.metric}'"
            )
        if self.topology == "vanilla" and "features" in {
            leg for method in self.method for leg in getattr(method, "legs", ())
        }:
            raise ScenarioError(
                "topology", "a vanilla cut has no feature legs for a method to act on"
            )
        info = self.data.source.describe()
        if info is not None:
            self.shapes(info)
        return self

    @property
    def splits(self) -> tuple[Literal["test", "validation"], ...]:
        """The splits that are evaluated."""
        if self.evaluate.on is not None:
            if "validation" in self.evaluate.on and not self.data.validation:
                raise ScenarioError("evaluate.on", "validation needs data.validation above 0")
            return self.evaluate.on
        return ("validation", "test") if self.data.validation else ("test",)

    @property
    def figures(self) -> list[str]:
        """The evaluation columns of the `rounds` table."""
        return [f"{split}_{metric}" for split in self.splits for metric in self.evaluate.metrics]

    def shapes(self, info: DataInfo) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
        """(cut, features) as the model has them, and as they cross the wire."""
        whole = self.model.shapes(info.shape)
        return whole, sent_shapes(self.method, whole)

    def yaml(self) -> str:
        """The scenario, resolved and complete: what is saved with a run and replays it."""
        return dump(self.model_dump(mode="json"))


def load_scenario(
    path: str | Path,
    overrides: Mapping[str, str] | None = None,
    methods: Mapping[str, type[MethodConfig]] | None = None,
) -> Scenario:
    """Read a scenario file; `overrides` maps dotted fields to YAML values (as `--set` does).

    >>> load_scenario("scenarios/quickstart.yaml", {"clients.count": "4"})  # doctest: +SKIP
    """
    return parse(read(Path(path), overrides or {}), methods)


def parse(
    values: Mapping[str, Any], methods: Mapping[str, type[MethodConfig]] | None = None
) -> Scenario:
    """A scenario from plain values; `methods` are those of plugins."""
    model = scenario_class(methods)
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, model, values) from None


def scenario_class(methods: Mapping[str, type[MethodConfig]] | None = None) -> type[Scenario]:
    """Scenario, its `method` field extended by the methods of plugins."""
    if not methods:
        return Scenario
    field = (tuple[_union({**METHODS, **methods}), ...], ())
    return create_model("Scenario", __base__=Scenario, method=field)


def file_schema(methods: Mapping[str, type[MethodConfig]] | None = None) -> dict[str, Any]:
    """JSON Schema of a scenario file: the model's, and what only a file may have (`extends`)."""
    schema = scenario_class(methods).model_json_schema()
    extends = {"type": "string", "description": "A scenario file whose fields this one overrides."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
