"""What `simsplit list` prints: every part that a scenario can name, with its fields.

All of it is read off the configs themselves, so it cannot fall behind them.
"""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from simsplit.data import PARTITIONS, SOURCES
from simsplit.errors import ScenarioError, near
from simsplit.methods import METHODS
from simsplit.metrics.classification import METRICS
from simsplit.models import MODELS
from simsplit.parties.optimizers import LR_SCHEDULES, OPTIMIZERS
from simsplit.report.tables import Table
from simsplit.scenario import Scenario
from simsplit.schedules.sequential import SCHEDULES

Configs = Mapping[str, type[BaseModel]]


def groups(plugins: Configs | None = None) -> dict[str, Configs]:
    """Every registry, by the word that `simsplit list` knows it under."""
    sections = {
        name: field.annotation
        for name, field in Scenario.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    return {
        "scenario": {"scenario": Scenario} | sections,
        "methods": {**METHODS, **(plugins or {})},
        "models": MODELS,
        "data": SOURCES,
        "partitions": PARTITIONS,
        "schedules": SCHEDULES,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
    }


def catalogue(what: str | None, plugins: Configs | None = None) -> list[Table]:
    """A table per part of one group; with no group named, one table of all groups."""
    known = groups(plugins)
    if what is None:
        rows = [(name, ", ".join(parts)) for name, parts in known.items()]
        rows.append(("metrics", ", ".join(METRICS)))
        return [Table("simsplit list WHAT", ("what", "kinds"), rows)]
    if what == "metrics":
        rows = [(name, (metric.__doc__ or "").splitlines()[0]) for name, metric in METRICS.items()]
        return [Table("metrics", ("metric", "meaning"), rows)]
    if what not in known:
        words = [*known, "metrics"]
        raise ScenarioError(
            "",
            f"nothing to list under '{what}'{near(what, words) or ','} allowed: {', '.join(words)}",
        )
    return [_part(kind, config) for kind, config in known[what].items()]


def _part(kind: str, config: type[BaseModel]) -> Table:
    rows = []
    for name, field in config.model_fields.items():
        if name == "kind":
            continue
        default = (
            "required"
            if field.is_required()
            else _default(field.get_default(call_default_factory=True))
        )
        rows.append((name, _type(field.annotation), default, _one_line(field.description)))
    title = f"{kind}: {_one_line(config.__doc__)}"
    return Table(title, ("field", "type", "default", "meaning"), rows)


def _one_line(text: str | None) -> str:
    first = (text or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def _default(value: object) -> str:
    if value is PydanticUndefined or value is None:
        return "null"
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", None)
        return str(kind) if kind else "{...}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_default(item) for item in value) + "]"
    return str(value)


def _type(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """An annotation as a user would say it."""
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_type(arg) for arg in args))
    if origin is tuple:
        return f"list of {_type(args[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        return str(kind.default) if kind else "fields"
    plain = {int: "whole number", float: "number", str: "text", bool: "true | false"}
    return {**plain, Path: "path", type(None): "null"}.get(annotation, str(annotation))
