"""The truth of a transcript: inputs and labels by the ids of samples, for judges alone.

It has a folder handle of its own, and nothing that reads packets makes one. What scores an attack
opens it after the attack has returned what it recovered.

    truth = Truth.open(Path("wire"))
    if truth is not None:
        truth.find_inputs([4, 7]), truth.find_labels([4, 7])   # a tensor for each sample
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simsplit.errors import RunError, format_list
from simsplit.wires.confined import MOST_INDEX, ConfinedFolder
from simsplit.wires.facts import SAMPLES, TRUTH, parse_ids
from simsplit.wires.tensor_file import TensorFile, is_finite

MOST_SAMPLES = 10_000_000
"""Samples of a truth, at most."""
_Column = Literal["inputs", "labels"]


class _Batch(NamedTuple):
    """A line of the truth's table: samples that lie together."""

    file: str
    inputs: str
    labels: str


class Truth:
    """Inputs and labels of samples, found by their ids."""

    def __init__(self, folder: ConfinedFolder) -> None:
        self._folder = folder
        self._batches: list[_Batch] = []
        places = [np.empty((3, 0), np.int64)]
        for number, (batch, found) in enumerate(self._read_table()):
            places.append(np.stack(np.broadcast_arrays(found, number, np.arange(len(found)))))
            self._batches.append(batch)
        joined = np.concatenate(places, axis=1)
        order = np.argsort(joined[0], kind="stable")
        self.ids, self._batch, self._row = joined[:, order]
        """All ids, in rising order."""

    @classmethod
    def open(cls, path: Path | str) -> "Truth | None":
        """Open the truth of the transcript in a folder; None if it has none."""
        folder = ConfinedFolder.open(Path(path))
        return cls(folder.open_below(TRUTH)) if folder.has(TRUTH) else None

    def find_inputs(self, ids: Sequence[int]) -> list[Tensor]:
        """Return the inputs of samples, a tensor for each; raise RunError for an unknown id."""
        return self._find(ids, "inputs")

    def find_labels(self, ids: Sequence[int]) -> list[Tensor]:
        """Return the labels of samples, a tensor for each; raise RunError for an unknown id."""
        return self._find(ids, "labels")

    def stack(self, ids: Sequence[int], column: _Column = "inputs") -> Tensor:
        """Return samples of one shape; raise RunError for others, and for empty ones."""
        found = self._find(ids, column)
        shapes = sorted({tuple(each.shape) for each in found})
        if len(shapes) > 1 or 0 in shapes[0]:
            every = format_list(str(list(shape)) for shape in shapes[:3])
            raise RunError(f"{self._folder.name}: {column} need one shape, got {every}")
        return torch.stack(found)

    def has(self, column: _Column) -> bool:
        """Return whether every sample has inputs, or labels."""
        return bool(self._batches) and all(getattr(each, column) for each in self._batches)

    def _find(self, ids: Sequence[int], column: _Column) -> list[Tensor]:
        places = np.searchsorted(self.ids, ids)
        for place, wanted in zip(places.tolist(), ids, strict=True):
            if place == len(self.ids) or self.ids[place] != wanted:
                raise RunError(f"{self._folder.name} has no sample {wanted}")
        found: list[Tensor | None] = [None] * len(ids)
        # Batch by batch, so that each file is opened once.
        by_batch: Callable[[int], int] = lambda number: int(self._batch[places[number]])  # noqa: E731
        for batch, numbers in groupby(sorted(range(len(ids)), key=by_batch), by_batch):
            about = self._batches[batch]
            name = getattr(about, column)
            if not name:
                raise RunError(f"{self._folder.name} has no {column} of some samples")
            file = TensorFile(self._folder, about.file)
            for number in numbers:
                value = file.read(name, int(self._row[places[number]]), 1)[0]
                if not is_finite(value):
                    raise RunError(
                        f"{self._folder.name}: {column} of sample {ids[number]} must be finite in "
                        "float32, so that guesses can be judged"
                    )
                found[number] = value
        return [each for each in found if each is not None]

    def _read_table(self) -> Iterator[tuple[_Batch, tuple[int, ...]]]:
        total = 0
        for cells in self._folder.read_lines(SAMPLES, MOST_INDEX):
            with self._folder.explain(SAMPLES):
                ids = parse_ids(cells)
                total += len(ids)
                if total > MOST_SAMPLES:
                    raise ValueError(f"it has more than {MOST_SAMPLES:,} samples")
                names = [cells.get(column) or "" for column in _Batch._fields]
                if not ids or not names[0]:
                    raise ValueError("a line lacks file or ids")
            yield _Batch(*names), ids
