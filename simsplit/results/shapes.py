"""The facts that a run directory keeps as JSON or YAML have these shapes, and are checked by them.

Only what others read by name is declared; further fields are kept unchecked.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from simsplit.errors import RunError
from simsplit.foreign import read_facts

Figures = dict[str, float | None]
"""Figures by name; `round` is among them."""


class Shape(BaseModel):
    """Base class of shapes: types are taken as they are, and further fields are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)


class SummaryShape(Shape):
    """The shape of `summary.json`."""

    name: str = ""
    status: str
    rounds: int = 0
    rounds_done: int = 0
    reason: str = ""
    copies: str = ""
    seed: int = 0
    last: Figures = {}
    best_on_validation: Figures | None = None
    best_on_test: Figures | None = None
    bytes: dict[str, int] = {}
    seconds: float = 0.0
    per_sample: dict[str, float] = {}
    simulated_s: float = 0.0
    flops: dict[str, float | dict[str, dict[str, float]]] = {}
    resident_bytes: int | None = None
    attack_samples: int = 0
    privacy: list[dict[str, Any]] = []
    withheld: list[str] = []
    simulators_view: list[str] = []

    @model_validator(mode="after")
    def _require_results(self) -> "SummaryShape":
        """Require what every finished run has."""
        wanted = ("name", "last", "bytes")
        lacking = [name for name in wanted if name not in self.model_fields_set]
        if self.status == "finished" and lacking:
            raise ValueError(f"a finished run has {', '.join(lacking)}")
        return self


class DataShape(Shape):
    """The shape of `data.json`."""

    name: str
    sample: list[int]
    samples: dict[str, int]
    classes: list[str]
    mean: list[float]
    std: list[float]
    clients: list[str] = []


class EnvironmentShape(Shape):
    """The shape of `environment.json`."""

    started: str = ""
    command: list[str] = []
    resumed: list[dict[str, Any]] = []
    process: dict[str, Any] = {}
    packages: dict[str, str | None] = {}
    plugins: list[dict[str, Any]] = []
    stack: dict[str, Any] = {}
    """How clients of a fused cohort train, where the run chose it."""


class TunedAttackShape(Shape):
    """The shape of what an attacker chose for one attack."""

    attack: str
    chosen: dict[str, Any]
    figure: str
    tried: list[dict[str, Any]]


class TunedShape(Shape):
    """The shape of `tuned.json`."""

    attacks: list[TunedAttackShape]
    seconds: float = 0.0
    scenario: str = ""
    """The digest of the scenario whose attacker chose."""


class CellShape(Shape):
    """The shape of a cell's entry in `sweep.json`."""

    name: str
    settings: dict[str, Any]
    label: str = ""

    @model_validator(mode="after")
    def _refuse_paths(self) -> "CellShape":
        """Refuse a name that is no folder's: a cell lies in the sweep's directory."""
        if self.name in ("", ".", "..") or Path(self.name).name != self.name:
            raise ValueError(f"'{self.name}' is not the name of a folder")
        return self


class SweepShape(Shape):
    """The shape of `sweep.json`."""

    name: str
    fields: dict[str, str]
    cells: list[CellShape]
    failed: dict[str, str]
    process: dict[str, Any] | None = None
    batches: list[int] = []


class KindShape(Shape):
    """The shape of a part of a scenario."""

    kind: str


class SourceShape(Shape):
    """The shape of a scenario's data."""

    source: KindShape


class ClientsShape(Shape):
    """The shape of a scenario's clients."""

    count: int


class ScenarioShape(Shape):
    """The shape of a resolved scenario, as plain values."""

    name: str
    seed: int
    topology: str
    data: SourceShape
    model: KindShape
    clients: ClientsShape
    method: list[KindShape]
    schedule: KindShape
    detectors: list[KindShape] = []
    attacks: list[KindShape] = []
    aggregation: KindShape | None = None
    targets: dict[str, Any] = {}


def read_shaped(file: Path, shape: type[Shape]) -> dict[str, Any]:
    """Read a JSON file of a shape; raise RunError if there is none, or if it has another shape."""
    return check_shape(file, shape, lambda: read_facts(file))


def check_shape(file: Path, shape: type[Shape], read: Callable[[], Any]) -> dict[str, Any]:
    """Return what `read` returns; raise RunError, by the file, if that fails or has another shape.

    The values are returned as they were read, without defaults.
    """
    try:
        values: dict[str, Any] = read()
        shape.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        why = f"{field}: {first['msg']}" if field else str(first["msg"])
        raise RunError(f"cannot read {file}: {why}") from None
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RunError(f"cannot read {file}: {why}") from None
    return values
