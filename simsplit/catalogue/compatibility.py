"""This table shows which part works with which data and topology, and what else it needs.

It is read from the `needs` of the parts with default options; scenarios are checked against the
same needs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from simsplit.methods.method import IMAGES, NUMBERS, TABLES, TEXTS, Modality
from simsplit.needs import Given, Need
from simsplit.report.tables import Table
from simsplit.scenario.needs import format_bare, list_options
from simsplit.topologies import Topology

MODALITIES: tuple[Modality, ...] = get_args(Modality)
_WORDS: dict[Given, str] = {
    Given.CROSSES: "",
    Given.SCORING: "",
    Given.IMAGES: "",
    Given.TEXTS: "",
    Given.TABLES: "",
    Given.NUMBERS: "",
    Given.SAMPLES: "{leg} of single samples",
    Given.READABLE: "{leg} that can be read alone",
    Given.FLOATS: "{leg} as floats",
    Given.CLASSES: "gradients of single samples, or labels",
    Given.CLASSIFIES: "one label a sample",
    Given.TASK_GRADIENT: "a trunk that the task's loss trains (not pslf)",
    Given.TWO_CLASSES: "two classes",
    Given.ADAPTER_SETS: "{least} sets of adapters",
    Given.OWN_ADAPTERS: "adapters that one client alone trains",
    Given.IN_A_ROW: "a server that is asked two steps in a row",
    Given.LEARNED_TRUNK: "a trunk that learns",
    Given.FROZEN_TRUNK: "a trunk that does not learn",
    Given.LABELLED: "samples with classes",
    Given.UNMASKED: "texts without a mask",
    Given.CAUSAL: "a model that predicts tokens",
    Given.KNOWN_TAIL: "pretrained weights",
    Given.SESSIONS: "rows of single texts when clients write",
    Given.PUBLIC: "public data",
    Given.SUPPORT: "public texts to mix with",
    Given.PAIRS: "mixguard or snd, with a warm-up",
    Given.WATCHED: "a trunk that all clients train (not splitfed_v1)",
    Given.TURNS: "whole turns of clients (per_client)",
    Given.LAPS: "steps of all clients at once (parallel)",
    Given.BARRIER: "a schedule that waits (not asynchronous)",
    Given.SHARED: "something that clients share",
    Given.HANDED_ROUND: "turns, where clients share something",
    Given.CLIENTS: "{least} clients",
    Given.ASKED: "{least} clients a round",
    Given.BATCH: "batches of {least}",
}
"""The words for each need; empty for needs that have columns of their own."""
_OF: dict[Given, frozenset[Modality]] = {
    Given.IMAGES: IMAGES,
    Given.TABLES: TABLES,
    Given.TEXTS: TEXTS,
    Given.NUMBERS: NUMBERS,
}


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
    before = ("", *(row[0] for row in rows))
    return [
        ("" if row[0] == last else row[0], *row[1:])
        for last, row in zip(before, rows, strict=False)
    ]


def _make_cells(config: type[BaseModel], topologies: Mapping[str, Topology]) -> tuple[str, ...]:
    part: Any = config()
    data = [_format_data(part, each) for each in MODALITIES]
    cuts = [_format_topology(part, each) for each in topologies.values()]
    return (*data, *cuts, "; ".join(dict.fromkeys(filter(None, map(_format_need, part.needs)))))


def _format_data(part: Any, modality: str) -> str:  # noqa: ANN401 - any part's config
    """Return "yes" if no need of a part excludes a kind of data, else an empty text."""
    allowed = [_OF[need.what] for need in part.needs if need.what in _OF]
    return "yes" if all(modality in each for each in allowed) else ""


def _format_topology(part: Any, topology: Topology) -> str:  # noqa: ANN401 - any part's config
    """Return "yes" if all that a part needs crosses, else the values of its field that would do."""
    if topology.of_texts and not _format_data(part, "texts"):
        return ""
    unmet = [need for need in part.needs if not _crosses(need, topology)]
    if not unmet:
        return "yes"
    field = unmet[0].field
    if field == "kind":
        return ""
    others = [
        value
        for value in list_options(type(part).model_fields[field].annotation)
        for needs in [part.model_copy(update={field: value}).needs]
        if all(_crosses(need, topology) for need in needs)
    ]
    return f"with {field}: {', '.join(map(format_bare, others))}" if others else ""


def _crosses(need: Need, topology: Topology) -> bool:
    """Return whether a topology satisfies a need; needs that are not of a topology are met."""
    if need.what is Given.SCORING:
        return topology.tail_with_client
    if need.what is Given.SESSIONS:
        return topology.sessions and topology.tail_with_client
    if need.what is Given.LEARNED_TRUNK:
        return topology.whole_model is not True  # a whole model is frozen; its adapters learn
    return need.what is not Given.CROSSES or need.leg in topology.training.legs


def _format_need(need: Need) -> str:
    """Return a need in words; empty if every scenario meets it."""
    if need.least == 1 and need.what in (Given.CLIENTS, Given.ASKED, Given.BATCH):
        return ""
    leg = need.leg.words if need.leg else ""
    return _WORDS[need.what].format(leg=leg, least=need.least)
