"""This table shows which part works with which data and topology, and what else it needs.

It is read from the `needs` of the parts with default options; scenarios are checked against the
same needs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from simsplit.methods.method import Modality
from simsplit.needs import join_needs
from simsplit.report.tables import Table
from simsplit.scenario.unmet_needs import format_bare, list_options
from simsplit.topologies import Topology

MODALITIES: tuple[Modality, ...] = get_args(Modality)


def tabulate_compatibility(
    parts: Mapping[str, Mapping[str, type[BaseModel]]], topologies: Mapping[str, Topology]
) -> Table:
    """Return a row per part of these registries: data, topologies, and other needs by default."""
    rows = [
        (group, ", ".join(kinds), *_make_cells(config, topologies))
        for group, registry in parts.items()
        for config, kinds in group_kinds(registry)
    ]
    columns = ("", "kind", *MODALITIES, *topologies, "what else it needs")
    title = "which part works with which data and topology, with default options"
    return Table(title, columns, _blank_repeats(rows), "l" * len(columns))


def group_kinds(
    registry: Mapping[str, type[BaseModel]],
) -> Iterator[tuple[type[BaseModel], list[str]]]:
    """Yield each config with its kinds: several kinds may share one config."""
    for config in dict.fromkeys(registry.values()):
        yield config, [kind for kind, other in registry.items() if other is config]


def _blank_repeats(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows with an empty first cell where it would repeat the one above."""
    before = ["", *(row[0] for row in rows)]
    pairs = zip(before, rows, strict=False)
    return [("" if row[0] == last else row[0], *row[1:]) for last, row in pairs]


def _make_cells(config: type[BaseModel], topologies: Mapping[str, Topology]) -> tuple[str, ...]:
    part: Any = config()
    data = [_format_data(part, each) for each in MODALITIES]
    cuts = [_format_topology(part, each) for each in topologies.values()]
    return (*data, *cuts, join_needs(part.needs))


def _format_data(part: Any, modality: str) -> str:  # noqa: ANN401 - any part's config
    """Return "yes" if no need of a part excludes a kind of data, else an empty text."""
    allowed = [need.what.value.modalities for need in part.needs]
    return "yes" if all(modality in each for each in allowed if each) else ""


def _format_topology(part: Any, topology: Topology) -> str:  # noqa: ANN401 - any part's config
    """Return "yes" if all that a part needs crosses, else the values of its field that would do."""
    if topology.of_texts and not _format_data(part, "texts"):
        return ""
    unmet = [need for need in part.needs if not topology.can_satisfy(need)]
    if not unmet:
        return "yes"
    field = unmet[0].field
    if field == "kind":
        return ""
    others = [
        value
        for value in list_options(type(part).model_fields[field].annotation)
        for needs in [part.model_copy(update={field: value}).needs]
        if all(topology.can_satisfy(need) for need in needs)
    ]
    return f"with {field}: {', '.join(map(format_bare, others))}" if others else ""
