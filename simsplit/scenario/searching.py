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
_OWN = ("sampler", "figure", "start")
SCHEMA: dict[str, Any] = {
    **draws.SCHEMA,
    "description": "Cells that Optuna chooses one after the other, by what earlier ones reached.",
    "properties": {
        draws.COUNT: {"type": "integer", "minimum": 1},
        "sampler": {"enum": list(get_args(Sampler))},
        "figure": {"type": "string"},
        "start": {"type": "integer", "minimum": 1},
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
    known = get_args(Sampler)
    sampler = content.get("sampler", "tpe")
    if sampler not in known:
        hint = suggest(str(sampler), known) or ","
        raise ScenarioError(
            f"{where}.sampler", f"got {format_value(sampler)}{hint} allowed: {', '.join(known)}"
        )
    start = content.get("start", 10)
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise ScenarioError(
            f"{where}.start", f"must be a number of settings, got {format_value(start)}"
        )
    fields = {name: values for name, values in content.items() if name not in _OWN}
    drawn: Sequence[dict[str, Any]] = draws.draw_cells(where, fields, most)
    return list(drawn)
