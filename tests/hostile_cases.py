"""The scenarios in which hostile clients are tried, made from the registries of all parts.

A case has several hostile clients, each with a way of its own, and two honest ones.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args

from contracts.walk import (
    AGGREGATIONS,
    HEADS,
    SCHEDULES,
    TWO_CLASSES,
    Axes,
    Part,
    values_of,
    variants,
)
from hostile import Way
from hostile_ways import list_sly_ways, list_ways
from texts import reviews

from simsplit.deploy.terms import refuse_undeployable
from simsplit.errors import ScenarioError
from simsplit.methods import METHODS
from simsplit.methods.method import Modality
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.topologies import TOPOLOGIES

HONEST = 2
Data = Literal["images", "tables", "texts", "classes", "written"]
"""The kinds of data: a model predicts the words of texts, or their classes, or writes texts too."""
LOUD, SLY = 2, 1
"""Hostile clients of a quick case: those that lose their places, and those that may not."""
MORE = 2
"""How many times as many a slow case has."""
DATA_OF_METHODS: tuple[Data, ...] = ("images", "tables", "texts")
CLASSIFIED: dict[str, Any] = {
    "model": {"kind": "sequence_classifier", "sizes": {"width": 16}, "head": 1, "tail": 1}
}
WRITTEN: dict[str, Any] = {
    "data": {
        "source": {
            "task": {"kind": "generation", "prompt": "{sentence} is", "answer": " a {topic}"},
            "length": 48,
        }
    },
    "evaluate": {"metrics": ["rouge_l"], "generated_texts": 3, "max_new_tokens": 3},
}
CHANGES: dict[str, dict[str, Any]] = {
    "tables": TWO_CLASSES,
    "classes": CLASSIFIED,
    "written": WRITTEN,
}
MODALITIES: dict[Data, Modality] = {
    "images": "images",
    "tables": "tables",
    **dict.fromkeys(("texts", "classes", "written"), "texts"),
}


WIDER: dict[str, Any] = {"model": {"widths": [48, 48, 48]}}
ENOUGH: dict[tuple[str, Data], dict[str, Any]] = {
    ("topk", "tables"): WIDER,
    ("randtopk", "tables"): WIDER,
}
"""What a method needs of such data so that it keeps a value."""


@dataclass(frozen=True)
class Case:
    """One scenario in which hostile clients are tried."""

    axes: Axes
    data: Data
    part: Part | None = None
    is_slow: bool = False
    """Whether other cases have each of its parts."""

    def __str__(self) -> str:
        part = [] if self.part is None else [self.part.kind, *map(str, self.part.fields.values())]
        return " ".join([*self.axes, self.data, *part])

    def make_values(self, hostile: int) -> dict[str, Any]:
        """Return the fields of the scenario, with this number of hostile clients."""
        changes = merge(CHANGES.get(self.data, {}), {} if self.part is None else self.part.changes)
        changes = merge(changes, ENOUGH.get((self.part.kind, self.data), {}) if self.part else {})
        values = values_of(self.axes, changes, texts=MODALITIES[self.data] == "texts")
        more = {
            "clients": {"count": hostile + HONEST},
            "schedule": {"rounds": 2},
            "evaluate": {"every": 1},
            "checkpoint": {"every": 1},
        }
        return merge(values, more)

    def read(self, folder: Path, hostile: int) -> Scenario:
        """Return the scenario; texts lie in a folder."""
        values = self.make_values(hostile)
        if MODALITIES[self.data] == "texts":
            values["data"]["source"]["path"] = str(reviews(folder / "reviews"))
        return parse(values)

    def list_parts(self) -> list[str]:
        """Return what the case is made of, each with its place."""
        own = [*self.axes, self.data, *([] if self.part is None else [self.part])]
        places = ("topology", "heads", "schedule", "aggregation", "data", "method")
        return [f"{place} {part}" for place, part in zip(places, own, strict=False)]

    def list_pairs(self) -> set[frozenset[str]]:
        """Return the pairs of its parts."""
        return {frozenset(pair) for pair in combinations(self.list_parts(), 2)}

    def find_refusal(self) -> ScenarioError | None:
        """Return why the scenario is refused, or cannot be deployed; None if it can."""
        try:
            refuse_undeployable(parse(self.make_values(1)))
        except ScenarioError as error:
            return error
        return None


def list_axes_cases() -> Iterator[Case]:
    """List cases of the topologies, aggregations, kinds of data, and ownerships of the heads."""
    for topology, aggregation, data in product(TOPOLOGIES, AGGREGATIONS, get_args(Data)):
        if TOPOLOGIES[topology].whole_model and data in ("classes", "written"):
            continue  # its model reads classes anyway, and writes nothing
        is_slow = False
        for heads in HEADS:
            every = (Case((topology, heads, each, aggregation), data) for each in SCHEDULES)
            allowed = next((case for case in every if case.find_refusal() is None), None)
            if allowed is not None:
                yield replace(allowed, is_slow=is_slow)
                is_slow = True


def list_method_cases() -> Iterator[Case]:
    """List the cases of each method: kinds of data, topologies, and ways to be about the cut."""
    for kind, config in METHODS.items():
        parts = {(part.texts, str(part)): part for part in variants("method.0", {kind: config})}
        known: set[Data] = set()
        for name, data, topology in product(sorted(parts), DATA_OF_METHODS, TOPOLOGIES):
            part = parts[name]
            if part.texts is not (data == "texts") or data not in config.modalities:
                continue
            case = Case((topology, "own", "round_robin", "none"), data, part, data in known)
            if case.find_refusal() is None:
                known.add(data)
                yield case


def cover_pairs(cases: Sequence[Case]) -> list[Case]:
    """Choose a few slow cases, so that they and the quick ones have each pair that any case has."""
    left: set[frozenset[str]] = set().union(*(case.list_pairs() for case in cases))
    left -= set().union(*(case.list_pairs() for case in cases if not case.is_slow))
    chosen = []
    while left:
        chosen.append(max(cases, key=lambda case: len(case.list_pairs() & left)))
        left -= chosen[-1].list_pairs()
    return chosen


EVERY_CASE = [*list_axes_cases(), *list_method_cases()]
QUICK = [case for case in EVERY_CASE if not case.is_slow]
"""The cases that have each method on each kind of its data, and all pairs of the axes."""
SLOW = cover_pairs(EVERY_CASE)
"""The cases that have the other pairs of parts."""


def count_hostile(case: Case) -> tuple[int, int]:
    """Return how many clients of a case answer loudly, and how many slyly."""
    times = MORE if case.is_slow else 1
    return LOUD * times, SLY * times


@functools.cache
def plan_ways() -> dict[str, list[Way]]:
    """Choose the ways of every case, by its name.

    Each place goes to a way that was never tried; else to the one that adds the most pairs of a way
    and a part of the case, and among these to the one that is tried with the fewest parts.
    """
    tried: dict[str, set[str]] = {}
    return {str(case): list(_choose_ways(case, tried)) for case in (*QUICK, *SLOW)}


def _choose_ways(case: Case, tried: dict[str, set[str]]) -> Iterator[Way]:
    given, parts = parse(case.make_values(1)), set(case.list_parts())
    lists = list_ways(given), list_sly_ways(given)
    for ways, count in zip(lists, count_hostile(case), strict=True):
        left = {str(way): way for way in ways}
        for _ in range(count):
            name = min(left, key=lambda name: _rank(tried.get(name, set()), parts))
            tried.setdefault(name, set()).update(parts)
            yield left.pop(name)


def _rank(tried: set[str], parts: set[str]) -> tuple[bool, int, int]:
    return bool(tried), len(tried & parts), len(tried)
