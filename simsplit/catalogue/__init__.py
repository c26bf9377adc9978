"""`simsplit list` prints every part that a scenario can name, with its fields.

Everything is read from the configs themselves, so that the lists cannot differ from them.
"""

import json
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from simsplit.catalogue.compatibility import group_kinds, tabulate_compatibility
from simsplit.catalogue.threat_models import tabulate_rules, tabulate_threats
from simsplit.config import read_meanings
from simsplit.data.tasks import LAYOUTS
from simsplit.detectors.thresholds import THRESHOLDS
from simsplit.engine.engine_config import ENGINES
from simsplit.errors import SimsplitError, suggest
from simsplit.metrics.classification import METRICS, OF_TEXTS
from simsplit.network.profiles import MEANINGS, PROFILES
from simsplit.parties.optimizers import LR_SCHEDULES, OPTIMIZERS
from simsplit.plugins import PARTS, Given, Plugins, gather_plugins
from simsplit.poisons.malicious import MaliciousConfig
from simsplit.report.tables import Table
from simsplit.scenario import has_sweep, scenario_class
from simsplit.scenario.refusals import RULES
from simsplit.scenario.shipped import describe_all, list_names
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.schedules.schedule import SCHEDULES
from simsplit.topologies import TOPOLOGIES, Topology

Configs = Mapping[str, type[BaseModel]]


def collect_groups(plugins: Given = ()) -> dict[str, Configs]:
    """Return every registry, by the name that `simsplit list` takes for it."""
    known = gather_plugins(plugins)
    scenario = scenario_class(known)
    sections = {
        name: member
        for name, field in scenario.model_fields.items()
        for member in get_args(field.annotation) or (field.annotation,)
        if _is_config(member) and "kind" not in member.model_fields
    }
    return {
        "scenario": {"scenario": scenario} | sections,
        "methods": _collect("METHODS", known),
        "models": _collect("MODELS", known),
        "data": _collect("SOURCES", known),
        "partitions": _collect("PARTITIONS", known),
        "poisons": {"malicious": MaliciousConfig, **_collect("POISONS", known)},
        "detectors": _collect("DETECTORS", known),
        "thresholds": THRESHOLDS,
        "attacks": _collect("ATTACKS", known),
        "schedules": SCHEDULES,
        "aggregations": AGGREGATIONS,
        "strategies": _collect("STRATEGIES", known),
        "engines": ENGINES,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
        "observers": _collect("OBSERVERS", known),
    }


def _collect(name: str, plugins: Plugins) -> Configs:
    """Return a registry with what ships and what plugins add."""
    return {**PARTS[name].shipped, **plugins.of(name)}


def tabulate_catalogue(
    what: str | None, plugins: Given = (), part: str | None = None
) -> list[Table]:
    """Return a group's tables, one for each part; without a group, a table of all groups.

    `part` selects the table of that part, or the rows of that name.
    """
    plugins = gather_plugins(plugins)
    known, others = collect_groups(plugins), _collect_others(plugins)
    if what is None:
        rows = [(name, ", ".join(parts)) for name, parts in known.items()]
        rows += [(name, ", ".join(names)) for name, (names, _) in others.items()]
        return [Table("simsplit list WHAT", ("what", "kinds"), rows, "ll")]
    if what == "scenarios":
        return [_tabulate_scenarios(part)]
    if what in others:
        return _choose([((), table) for table in others[what][1]()], what, part)
    if what not in known:
        allowed = [*known, *others]
        hint = suggest(what, allowed) or ","
        raise SimsplitError(f"nothing to list under '{what}'{hint} allowed: {', '.join(allowed)}")
    groups = group_kinds(known[what])  # torchvision's data sets share one config
    tables = [(names, _tabulate_part(", ".join(names), config)) for config, names in groups]
    return _choose(tables, what, part)


def _choose(
    tables: Sequence[tuple[Sequence[str], Table]], what: str, part: str | None
) -> list[Table]:
    """Return the table of a part, or the rows of that name; all tables if no part is named."""
    if part is None:
        return [table for _, table in tables]
    if of_kind := [table for kinds, table in tables if part in kinds]:
        return of_kind
    named = [(t, [row for row in t.rows if row[0] == part]) for _, t in tables]
    if chosen := [Table(t.title, t.columns, rows, t.align) for t, rows in named if rows]:
        return chosen
    known = [kind for kinds, _ in tables for kind in kinds]
    known = known or [row[0] for _, table in tables for row in table.rows]
    hint = suggest(part, known) or ","
    raise SimsplitError(f"nothing called '{part}' under {what}{hint} allowed: {', '.join(known)}")


def _collect_others(plugins: Plugins) -> dict[str, tuple[list[str], Callable[[], list[Table]]]]:
    """Return the groups whose parts have no config: the names of their parts, and their tables."""
    metrics = {**METRICS, **plugins.of("METRICS")}
    topologies: dict[str, Topology] = {**TOPOLOGIES, **plugins.of("TOPOLOGIES")}
    names = ("methods", "attacks", "detectors", "poisons")
    parts = {name: _collect(name.upper(), plugins) for name in names}
    scenarios = [name for name in list_names() if "/" not in name]
    return {
        "profiles": (
            [name for named in PROFILES.values() for name in named],
            lambda: [_tabulate_profiles(kind, named) for kind, named in PROFILES.items()],
        ),
        "metrics": (list(metrics), lambda: _tabulate_metrics(metrics)),
        "topologies": (list(topologies), lambda: [_tabulate_topologies(topologies)]),
        "tasks": (list(LAYOUTS), lambda: [_tabulate_tasks()]),
        # What parties cannot have is no need of a part: `list rules` says it.
        "compatibility": (
            list(parts),
            lambda: [
                tabulate_compatibility(
                    parts, {name: each for name, each in topologies.items() if not each.joint}
                )
            ],
        ),
        "threats": (list(parts["attacks"]), lambda: [tabulate_threats(parts["attacks"])]),
        "rules": ([occasion.value for occasion in RULES], lambda: [tabulate_rules()]),
        "scenarios": (scenarios, lambda: [_tabulate_scenarios(None)]),
    }


def _tabulate_metrics(metrics: Mapping[str, object]) -> list[Table]:
    images = [(name, _join_lines(metric.__doc__)) for name, metric in metrics.items()]
    both = (("metrics of images", images), ("metrics of texts", list(OF_TEXTS.items())))
    return [Table(title, ("metric", "meaning"), rows, "ll") for title, rows in both]


def _tabulate_topologies(topologies: Mapping[str, Topology]) -> Table:
    shown = []
    for name, each in topologies.items():
        legs = [f"{leg} {'up' if leg.up else 'down'}" for leg in each.training.legs]
        shown.append((name, each.meaning, ", ".join(legs)))
    return Table("topologies", ("topology", "meaning", "what crosses in a step"), shown, "lll")


def _tabulate_tasks() -> Table:
    tasks = [
        (name, task.kind_name, json.dumps(task.model_dump(mode="json", exclude={"kind"})))
        for name, task in LAYOUTS.items()
    ]
    return Table("tasks of texts", ("task", "kind", "fields"), tasks, "lll")


def _tabulate_scenarios(part: str | None) -> Table:
    """Return a table of shipped scenarios, with their comments and the command that runs them.

    Without a part, a folder of scenarios is one row. A part is a name, or a folder such as papers.
    """
    rows: list[tuple[str, ...]] = []
    folders: Counter[str] = Counter()
    for each in describe_all():
        if part is None and "/" in each.name:
            folders["/".join(each.name.split("/")[:2])] += 1
        elif part is None or part in (each.name, *map(str, PurePosixPath(each.name).parents)):
            by = "sweep" if has_sweep(each.name) else "run"
            rows.append((each.name, by, each.shows, each.takes or "not measured"))
    for folder, count in folders.items():
        rows.append((folder, "folder", f"simsplit list scenarios {folder}", f"{count} scenarios"))
    if not rows:
        hint = suggest(part or "", list_names()) or "; simsplit list scenarios has the names"
        raise SimsplitError(f"no scenario and no folder of them is called '{part}'{hint}")
    columns = ("name", "by", "what it shows", "takes")
    return Table("scenarios: simsplit run NAME, or sweep", columns, rows, "llll")


def _tabulate_profiles(kind: str, named: Mapping[str, BaseModel]) -> Table:
    """Return a table of one kind of profiles, a row each."""
    figures = list(type(next(iter(named.values()))).model_fields)
    rows = [
        (name, *(f"{getattr(profile, figure):,g}" for figure in figures), MEANINGS[name])
        for name, profile in named.items()
    ]
    title = f"{kind} (assumed figures)"
    return Table(title, ("name", *figures, "meaning"), rows, "l" + "r" * len(figures) + "l")


def _tabulate_part(kind: str, config: type[BaseModel]) -> Table:
    # The scenario's sections have tables of their own, so its table does not repeat their fields.
    rows = _list_fields(config, "", inside=kind != "scenario")
    title = f"{kind}: {_join_lines(config.__doc__)}"
    columns = ("field", "type", "default", "meaning")
    return Table(title, columns, rows or [("(no fields)", "", "", "")], "llll")


def _list_fields(config: type[BaseModel], place: str, *, inside: bool) -> list[tuple[str, ...]]:
    """List a row for each field; `inside`: and for each field of a field that has fields."""
    rows: list[tuple[str, ...]] = []
    meanings = read_meanings(config)
    for name, field in config.model_fields.items():
        if name == "kind":
            continue
        kind, default = _format_type(field.annotation), _format_default(field)
        rows.append((f"{place}{name}", kind, default, _join_lines(meanings.get(name))))
        for member in get_args(field.annotation) or (field.annotation,):
            if inside and _is_config(member) and "kind" not in member.model_fields:
                rows += _list_fields(member, f"{place}{name}.", inside=True)
    return rows


def _is_config(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _join_lines(text: str | None) -> str:
    """Return the first paragraph of a text as one line."""
    first = (text or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) and "kind" not in type(value).model_fields:
        return "see below"
    return _format_value(value)


def _format_value(value: object) -> str:
    """Return a value as a scenario file spells it."""
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", "")
        rest = value.model_dump(exclude_defaults=True, exclude={"kind"})
        fields = (f"{name}: {_format_value(item)}" for name, item in rest.items())
        words = [f"kind: {kind}", *fields]
        return f"{{{', '.join(words)}}}" if rest else kind
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    if isinstance(value, tuple):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    return str(value) or '""'


def _format_type(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """Return the words for a field's type that a user understands."""
    if hasattr(annotation, "__metadata__"):
        return _format_type(annotation.__origin__)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_format_type(arg) for arg in args))
    if origin in (tuple, dict, Mapping):
        return _format_tuple(args) if origin is tuple else f"{{name: {_format_type(args[1])}}}"
    if _is_config(annotation):
        kind = annotation.model_fields.get("kind")
        return _format_type(kind.annotation) if kind else "fields"
    plain = {int: "whole number", float: "number", str: "text", bool: "true | false", Any: "values"}
    plain |= {Path: "path", ByteSize: "size", type(None): "null"}
    return plain.get(annotation, str(annotation))


def _format_tuple(args: tuple[Any, ...]) -> str:
    if args[-1] is not Ellipsis:
        return "[" + ", ".join(map(_format_type, args)) + "]"
    each = _format_type(args[0])
    return f"list of ({each})" if " | " in each else f"list of {each}"
