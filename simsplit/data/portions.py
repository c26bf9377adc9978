"""Portions of samples: what each party has of the same samples, and partitions that make them.

A party sees its own columns of a table, its own part of each image, or its own text of each row.
Parties without labels have samples whose labels are all missing, so that nothing of theirs can use
one by mistake.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from simsplit.data.dealing import Dealing
from simsplit.data.samples import IGNORED, DataInfo, Samples, get_classes
from simsplit.errors import ScenarioError, format_list, suggest

FIELD = "data.partition.groups"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Portion:
    """One party's portion of each sample."""

    index: tuple[Any, ...]
    """The places of it: a list of columns, a range of rows and one of columns of an image, or a
    range of tokens."""
    shape: Shape
    has_labels: bool = False

    def select(self, inputs: Tensor) -> Tensor:
        """Return the party's portion of a batch of inputs."""
        return inputs[(slice(None), ..., *self.index)].contiguous()

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for `data.json`."""
        places = [[e.start, e.stop] if isinstance(e, slice) else list(e) for e in self.index]
        facts: dict[str, object] = {"places": places, "shape": list(self.shape)}
        is_of_tokens = len(self.index) == 1 and isinstance(self.index[0], slice)
        return facts | ({"tokens": True} if is_of_tokens else {})

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "Portion":
        """Return what `to_dict` has made."""
        places = [[int(each) for each in axis] for axis in facts["places"]]
        ranges = len(places) > 1 or facts.get("tokens", False)
        index = tuple(slice(*axis) for axis in places) if ranges else (places[0],)
        return cls(index, tuple(facts["shape"]))

    def take(self, samples: Samples) -> Samples:
        """Return the party's portion of samples."""
        inputs, labels, texts = self.select(samples.inputs), samples.labels, samples.texts
        if texts is not None:
            classes = get_classes(labels)
            labels = torch.full_like(inputs, IGNORED)
            labels[:, 0] = classes  # an encoder's class is at the text's first token
            texts = texts.take_field(self.index[0].start // self.shape[0])
        taken = Samples(inputs, labels, texts)
        return taken if self.has_labels else mask_labels(taken)


def mask_labels(samples: Samples) -> Samples:
    """Return samples without any label."""
    texts = samples.texts
    if texts is not None:
        texts = replace(texts, groups=torch.zeros_like(texts.groups))
    return replace(samples, labels=torch.full_like(samples.labels, IGNORED), texts=texts)


class Joint(Dealing):
    """The base of partitions that give all parties the same samples, each a portion of them."""

    @abstractmethod
    def count_parties(self) -> int:
        """Return the number of parties."""

    @abstractmethod
    def cut(self, info: DataInfo, columns: Sequence[str]) -> list[Portion]:
        """Cut samples of this form into the parties' portions; `columns` are those of a table."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parties; empty: they have numbers alone."""
        return ()

    def deal(self, labels: np.ndarray, num_clients: int, seed: int) -> Sequence[np.ndarray]:
        self.check(labels, num_clients)
        return [np.arange(len(labels))] * num_clients

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        return [*self.deal(labels, num_clients, seed)]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        if num_clients != (count := self.count_parties()):
            raise ScenarioError(
                "clients.count",
                f"the partition has {count} parties, got {num_clients}; use clients.count: {count}",
            )


class ByColumns(Joint):
    """All parties have the same rows, each columns of its own (`topology: vertical`)."""

    kind: Literal["columns"] = "columns"
    groups: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """The columns of each party, by its name, such as `{bank: [age, income], shop: [items]}`. A
    name may end in `*`, for all columns that begin so. A table without names has columns 0, 1, ...
    Columns of texts are those that the task's prompt names."""

    @field_validator("groups", mode="before")
    @classmethod
    def _read_names(cls, value: object) -> object:
        # YAML reads the name of a column such as 3 as a number
        if not isinstance(value, Mapping):
            return value
        return {
            str(name): [str(each) for each in columns] if isinstance(columns, list) else columns
            for name, columns in value.items()
        }

    def count_parties(self) -> int:
        return len(self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.groups))

    def cut(self, info: DataInfo, columns: Sequence[str]) -> list[Portion]:
        """Return each group's columns; every column must be in one group.

        Of texts every party has as many places for tokens.
        """
        shape = info.shape
        if len(shape) != 1:
            raise ScenarioError(
                "data.partition.kind",
                f"columns is for tables, got samples of shape {shape}; use parts",
            )
        if info.texts:
            width = shape[0] // len(self.groups)
            starts = range(0, shape[0], width)
            return [Portion((slice(start, start + width),), (width,)) for start in starts]
        known = list(columns) or [str(place) for place in range(shape[0])]
        owners = _assign_columns(self.groups, known)
        places = [
            [n for n, each in enumerate(known) if owners[each] == name] for name in self.groups
        ]
        return [Portion((each,), (len(each),)) for each in places]

    def list_fields(self, known: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the columns of each party's text, in the order in which the prompt names them."""
        owners = _assign_columns(self.groups, known)
        return [tuple(each for each in known if owners[each] == name) for name in self.groups]


class ByParts(Joint):
    """All parties have the same images, each a part of every one (`topology: vertical`)."""

    kind: Literal["parts"] = "parts"
    parts: int = Field(default=2, ge=1)
    """Number of parts, and of parties."""
    by: Literal["columns", "rows", "patches"] = "columns"
    """columns: images are cut from top to bottom, so that parties have left and right. rows: from
    left to right, so that they have top and bottom. patches: both, such as four quadrants."""

    def count_parties(self) -> int:
        return self.parts

    def cut(self, info: DataInfo, columns: Sequence[str]) -> list[Portion]:
        shape = info.shape
        if len(shape) != 3:
            raise ScenarioError(
                "data.partition.kind",
                f"parts is for images, got samples of shape {shape}; use columns",
            )
        down, right = self._choose_grid()
        high, wide = shape[1] // down, shape[2] // right
        return [
            Portion((rows, places), (shape[0], high, wide))
            for rows in _cut(shape[1], down)
            for places in _cut(shape[2], right)
        ]

    def _choose_grid(self) -> tuple[int, int]:
        """Return the numbers of parts from top to bottom and from left to right."""
        if self.by == "columns":
            return 1, self.parts
        if self.by == "rows":
            return self.parts, 1
        down = next(n for n in range(math.isqrt(self.parts), 0, -1) if self.parts % n == 0)
        return down, self.parts // down


def _cut(size: int, parts: int) -> Iterator[slice]:
    """Yield ranges of equal size; raise ScenarioError if a size does not divide."""
    if size % parts:
        raise ScenarioError(
            "data.partition.parts",
            f"must divide the image's side of {size} pixels without a rest, got {parts}",
        )
    width = size // parts
    yield from (slice(start, start + width) for start in range(0, size, width))


def _assign_columns(groups: Mapping[str, tuple[str, ...]], known: Sequence[str]) -> dict[str, str]:
    """Return each column's group; raise ScenarioError if one has none, or two."""
    names = list(dict.fromkeys(known))
    owners: dict[str, str] = {}
    for group, wanted in groups.items():
        if not wanted:
            raise ScenarioError(f"{FIELD}.{group}", "has no column; give the party one or more")
        for pattern in wanted:
            for column in _find_columns(pattern, names, group):
                if owners.setdefault(column, group) != group:
                    raise ScenarioError(
                        f"{FIELD}.{group}",
                        f"column '{column}' is in group '{owners[column]}' too; each column "
                        "belongs to one party",
                    )
    if missing := [name for name in names if name not in owners]:
        raise ScenarioError(
            FIELD,
            f"no group has {format_list(missing, 5)}; give each column to a party, or leave it out "
            "with data.source.drop",
        )
    return owners


def _find_columns(pattern: str, names: Sequence[str], group: str) -> list[str]:
    """Return the columns that a name, or the beginning of names, stands for."""
    if pattern in names:
        return [pattern]
    matching = [name for name in names if fnmatchcase(name, pattern)] if "*" in pattern else []
    if not matching and "*" in pattern:
        raise ScenarioError(
            f"{FIELD}.{group}",
            f"has no column, as none begins as in '{pattern}'; each party needs one or more of "
            f"{format_list(list(names), 12)}",
        )
    if not matching:
        raise ScenarioError(
            f"{FIELD}.{group}",
            f"no column '{pattern}'{suggest(pattern, names) or ','} allowed: "
            f"{format_list(list(names), 12)}",
        )
    return matching
