"""What `simsplit list` prints: every part that a scenario can name, with its fields.

All of it is read off the configs themselves, so it cannot fall behind them.
"""

import json
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simsplit.catalogue.compatibility import compatibility
from simsplit.data.tasks import LAYOUTS, AnyTask
from simsplit.detectors.thresholds import THRESHOLDS
from simsplit.engine.config import ENGINES
from simsplit.errors import SimsplitError, near
from simsplit.metrics.classification import METRICS
from simsplit.metrics.tokens import OF_TEXTS
from simsplit.network.profiles import MEANINGS, PROFILES
from simsplit.parties.optimizers import LR_SCHEDULES, OPTIMIZERS
from simsplit.plugins import PARTS, Given, Plugins, gathered
from simsplit.poisons.malicious import MaliciousConfig
from simsplit.report.tables import Table
from simsplit.scenario import has_sweep, scenario_class
from simsplit.scenario.shipped import describe_all, list_names
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.schedules.config import SCHEDULES
from simsplit.topologies import TOPOLOGIES, Topology

Configs = Mapping[str, type[BaseModel]]


def groups(plugins: Given = ()) -> dict[str, Configs]:
    """Every registry, by the word that `simsplit list` knows it under."""
    known = gathered(plugins)
    scenario = scenario_class(known)
    sections = {
        name: member
        for name, field in scenario.model_fields.items()
        for member in get_args(field.annotation) or (field.annotation,)
        if _is_config(member) and "kind" not in member.model_fields
    }
    return {
        "scenario": {"scenario": scenario} | sections,
        "methods": _all("METHODS", known),
        "models": _all("MODELS", known),
        "data": _all("SOURCES", known),
        "partitions": _all("PARTITIONS", known),
        "poisons": {"malicious": MaliciousConfig, **_all("POISONS", known)},
        "detectors": _all("DETECTORS", known),
        "thresholds": THRESHOLDS,
        "attacks": _all("ATTACKS", known),
        "schedules": SCHEDULES,
        "aggregations": AGGREGATIONS,
        "strategies": _all("STRATEGIES", known),
        "engines": ENGINES,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
        "observers": _all("OBSERVERS", known),
    }


def _all(name: str, plugins: Plugins) -> Configs:
    """What ships, and what plugins add."""
    return {**PARTS[name].shipped, **plugins.of(name)}


def catalogue(what: str | None, plugins: Given = (), part: str | None = None) -> list[Table]:
    """Return a table per part of a group, or that of one part, or the rows of that name; with no
    group named, one table of all groups.
    """
    known, others = groups(plugins := gathered(plugins)), _others(plugins)
    if what is None:
        rows = [(name, ", ".join(parts)) for name, parts in known.items()]
        rows += [(name, ", ".join(words)) for name, (words, _) in others.items()]
        return [Table("simsplit list WHAT", ("what", "kinds"), rows, "ll")]
    if what in others:
        return _choose([((), table) for table in others[what][1]()], what, part)
    if what not in known:
        allowed = [*known, *others]
        hint = near(what, allowed) or ","
        raise SimsplitError(f"nothing to list under '{what}'{hint} allowed: {', '.join(allowed)}")
    kinds: dict[type[BaseModel], list[str]] = {}
    for kind, config in known[what].items():
        kinds.setdefault(config, []).append(kind)  # torchvision's data sets share one config
    tables = [(names, _part(", ".join(names), config)) for config, names in kinds.items()]
    return _choose(tables, what, part)


def _choose(
    tables: Sequence[tuple[Sequence[str], Table]], what: str, part: str | None
) -> list[Table]:
    """Choose the table of a part, or the rows of that name; all tables if no part is named."""
    if part is None:
        return [table for _, table in tables]
    if of_kind := [table for kinds, table in tables if part in kinds]:
        return of_kind
    named = [(t, [row for row in t.rows if row[0] == part]) for _, t in tables]
    if found := [Table(t.title, t.columns, rows, t.align) for t, rows in named if rows]:
        return found
    known = [kind for kinds, _ in tables for kind in kinds]
    known = known or [row[0] for _, table in tables for row in table.rows]
    hint = near(part, known) or ","
    raise SimsplitError(f"nothing called '{part}' under {what}{hint} allowed: {', '.join(known)}")


def _others(plugins: Plugins) -> dict[str, tuple[list[str], Callable[[], list[Table]]]]:
    """What is listed and has no config: its words, and its tables."""
    metrics = {**METRICS, **plugins.of("METRICS")}
    topologies: dict[str, Topology] = {**TOPOLOGIES, **plugins.of("TOPOLOGIES")}
    parts = {n: _all(n.upper(), plugins) for n in ("methods", "attacks", "detectors", "poisons")}
    return {
        "profiles": (
            [name for named in PROFILES.values() for name in named],
            lambda: [_profiles(kind, named) for kind, named in PROFILES.items()],
        ),
        "metrics": (list(metrics), lambda: _metrics(metrics)),
        "topologies": (list(topologies), lambda: [_topologies(topologies)]),
        "tasks": (list(LAYOUTS), lambda: [_tasks()]),
        "compatibility": (list(parts), lambda: [compatibility(parts, topologies)]),
        "scenarios": ([name for name in list_names() if "/" not in name], lambda: [_scenarios()]),
    }


def _metrics(metrics: Mapping[str, object]) -> list[Table]:
    images = [(name, _one_line(metric.__doc__)) for name, metric in metrics.items()]
    both = (("metrics of images", images), ("metrics of texts", list(OF_TEXTS.items())))
    return [Table(title, ("metric", "meaning"), rows, "ll") for title, rows in both]


def _topologies(topologies: Mapping[str, Topology]) -> Table:
    shown = [(name, each.meaning, _crossings(each)) for name, each in topologies.items()]
    return Table("topologies", ("topology", "meaning", "what crosses in a step"), shown, "lll")


def _tasks() -> Table:
    tasks = [(n, task.word, json.dumps(_fields(task))) for n, task in LAYOUTS.items()]
    return Table("tasks of texts", ("task", "kind", "fields"), tasks, "lll")


def _scenarios() -> Table:
    """Those that ship, with what their comments say, and the command that takes them."""
    rows = [
        (
            each.name,
            "sweep" if has_sweep(each.name) else "run",
            each.shows,
            each.takes or "not measured",
        )
        for each in describe_all()
    ]
    columns = ("name", "by", "what it shows", "takes")
    return Table("scenarios: simsplit run NAME, or sweep", columns, rows, "llll")


def _fields(task: AnyTask) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude={"kind"})


def _crossings(topology: Topology) -> str:
    return ", ".join(f"{leg} {'up' if leg.up else 'down'}" for leg in topology.training.legs)


def _profiles(kind: str, named: Mapping[str, BaseModel]) -> Table:
    """Named figures, a row each."""
    figures = list(type(next(iter(named.values()))).model_fields)
    rows = [
        (name, *(f"{getattr(profile, figure):,g}" for figure in figures), MEANINGS[name])
        for name, profile in named.items()
    ]
    title = f"{kind} (assumed figures)"
    return Table(title, ("name", *figures, "meaning"), rows, "l" + "r" * len(figures) + "l")


def _part(kind: str, config: type[BaseModel]) -> Table:
    rows = _rows(config, "", inside=kind != "scenario")  # whose sections have tables of their own
    title = f"{kind}: {_one_line(config.__doc__)}"
    columns = ("field", "type", "default", "meaning")
    return Table(title, columns, rows or [("(no fields)", "", "", "")], "llll")


def _rows(config: type[BaseModel], place: str, *, inside: bool) -> list[tuple[str, ...]]:
    """A row a field; below a field that has fields, theirs."""
    rows: list[tuple[str, ...]] = []
    for name, field in config.model_fields.items():
        if name == "kind":
            continue
        columns = (_type(field.annotation), _default(field), _one_line(field.description))
        rows.append((f"{place}{name}", *columns))
        for member in get_args(field.annotation) or (field.annotation,):
            if inside and _is_config(member) and "kind" not in member.model_fields:
                rows += _rows(member, f"{place}{name}.", inside=True)
    return rows


def _is_config(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _one_line(text: str | None) -> str:
    first = (text or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) and "kind" not in type(value).model_fields:
        return "see below"
    return _yaml(value)


def _yaml(value: object) -> str:
    """A default as a scenario would spell it."""
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", "")
        rest = value.model_dump(exclude_defaults=True, exclude={"kind"})
        words = [f"kind: {kind}", *(f"{name}: {_yaml(item)}" for name, item in rest.items())]
        return f"{{{', '.join(words)}}}" if rest else kind
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_yaml(item) for item in value) + "]"
    return str(value) or '""'


def _type(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """An annotation as a user would say it."""
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_type(arg) for arg in args))
    if origin in (tuple, dict):
        return _list_type(args) if origin is tuple else f"{{name: {_type(args[1])}}}"
    if _is_config(annotation):
        kind = annotation.model_fields.get("kind")
        return _type(kind.annotation) if kind else "fields"
    plain = {int: "whole number", float: "number", str: "text", bool: "true | false"}
    return {**plain, Path: "path", type(None): "null"}.get(annotation, str(annotation))


def _list_type(args: tuple[Any, ...]) -> str:
    if args[-1] is not Ellipsis:
        return "[" + ", ".join(map(_type, args)) + "]"
    each = _type(args[0])
    return f"list of ({each})" if " | " in each else f"list of {each}"
