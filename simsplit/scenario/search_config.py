"""A search that learns from what it has tried: `sweep.optuna` has Optuna choose the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

from simsplit.errors import ScenarioError, install_command, suggest
from simsplit.scenario import draws
from simsplit.scenario.messages import format_value

FORM = "optuna"
Sampler = Literal["tpe", "random", "qmc", "gp"]
Pruner = Literal["median", "successive_halving", "hyperband"]
_OWN = ("sampler", "figure", "start", "pruner", "grace")
SCHEMA: dict[str, Any] = {
    **draws.SCHEMA,
    "description": "Cells that Optuna chooses one after the other, by what earlier ones reached.",
    "properties": {
        draws.COUNT: {"type": "integer", "minimum": 1},
        "sampler": {"enum": list(get_args(Sampler))},
        "figure": {"type": "string"},
        "start": {"type": "integer", "minimum": 1},
        "pruner": {"enum": [*get_args(Pruner), None]},
        "grace": {"type": "integer", "minimum": 1},
    },
}


@dataclass(frozen=True)
class Search:
    """What a search varies, how it chooses, and by which figure."""

    fields: Mapping[str, Any]
    """Each field's list of values or range, as for random draws."""
    count: int
    sampler: Sampler = "tpe"
    figure: str | None = None
    """A figure of `compare`; None for the task's main one on validation data."""
    start: int = 10
    """Settings that are drawn at random before the sampler learns from them."""
    pruner: Pruner | None = None
    """What gives a setting up before its last round; None gives none up."""
    grace: int = 1
    """Evaluations of a setting before it may be given up."""


def read(declared: Any) -> Search | None:  # noqa: ANN401 - any YAML value
    """Return the search of a sweep that was checked already; None if it has none."""
    content = declared.get(FORM) if isinstance(declared, Mapping) else None
    if content is None:
        return None
    own = {name: content[name] for name in _OWN if content.get(name) is not None}
    fields = {
        name: values
        for name, values in content.items()
        if name not in (*_OWN, draws.COUNT) and values is not None
    }
    return Search(fields, content[draws.COUNT], **own)


def draw_cells(where: str, content: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Check a search, and return settings that it could choose: few, drawn at random."""
    if find_spec("optuna") is None:
        raise ScenarioError(where, f"needs the package optuna: {install_command('search')}")
    _require_known(f"{where}.sampler", content.get("sampler", "tpe"), get_args(Sampler))
    _require_count(f"{where}.start", content.get("start", 10), "settings")
    _require_count(f"{where}.grace", content.get("grace", 1), "evaluations")
    if content.get("pruner") is not None:
        _require_known(f"{where}.pruner", content["pruner"], get_args(Pruner))
    elif content.get("grace") is not None:
        raise ScenarioError(
            f"{where}.grace",
            f"gives settings time before a pruner, of which there is none; add pruner: "
            f"{' or '.join(get_args(Pruner))}",
        )
    fields = {name: values for name, values in content.items() if name not in _OWN}
    return draws.draw_cells(where, fields, most)


def _require_known(where: str, word: Any, known: Sequence[str]) -> None:  # noqa: ANN401
    """Raise ScenarioError for a word that is not one of those allowed."""
    if word not in known:
        hint = suggest(str(word), known) or ","
        raise ScenarioError(where, f"got {format_value(word)}{hint} allowed: {', '.join(known)}")


def _require_count(where: str, value: Any, what: str) -> None:  # noqa: ANN401
    """Raise ScenarioError for what is no number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScenarioError(where, f"must be a number of {what}, got {format_value(value)}")
