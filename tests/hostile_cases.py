"""The scenarios in which hostile clients are tried, made from the registries of all parts.

A case has several hostile clients, each with a way of its own, and two honest ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
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

    def find_refusal(self) -> ScenarioError | None:
        """Return why the scenario is refused, or cannot be deployed; None if it can."""
        try:
            refuse_undeployable(parse(self.make_values(1)))
        except ScenarioError as error:
            return error
        return None


def choose_ways(given: Scenario, number: int, loud: int, sly: int) -> list[Way]:
    """Choose ways of a case by its number, so that all cases together have every way."""
    chosen = []
    for ways, count in ((list_ways(given), loud), (list_sly_ways(given), sly)):
        chosen += [ways[(number * count + each) % len(ways)] for each in range(count)]
    return chosen


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


CASES = list(enumerate((*list_axes_cases(), *list_method_cases())))
"""All cases, with their numbers."""
