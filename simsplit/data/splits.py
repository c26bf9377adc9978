"""This module chooses rows so that even a small part keeps the classes' shares (stratified)."""

import math
from dataclasses import dataclass

import numpy as np

from simsplit.errors import ScenarioError, suggest
from simsplit.seeds import numpy_rng_for


def draw_stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` rows whose class shares equal those of `labels` to within one row per class.

    Each class gets its share rounded down, and the largest remainders get one row more. The rows
    are sorted. Unlike scikit-learn's splitter this accepts classes of a single row.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shares = sizes * (count / max(1, len(labels)))
    quotas = np.floor(shares).astype(int)
    # largest remainder first; a stable sort breaks ties by the order of classes
    by_remainder = np.argsort(quotas - shares, kind="stable")
    quotas[by_remainder[: count - quotas.sum()]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:quota]
        for label, quota in zip(classes, quotas, strict=True)
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Limit:
    """The largest number of rows of each split, and the classes to use; None: all."""

    train: int | None
    test: int | None
    seed: int
    classes: tuple[str, ...] | None = None

    def choose_rows(
        self, labels: np.ndarray, split: str, names: tuple[str, ...] = ()
    ) -> np.ndarray | None:
        """Choose the rows to keep; None if all are kept. `names` are the names of all classes."""
        most = self.train if split == "train" else self.test
        left = None
        if self.classes is not None:
            left = np.flatnonzero(np.isin(labels, find_class_numbers(self.classes, names)))
            labels = labels[left]
        if most is None or most >= len(labels):
            return left
        kept = draw_stratified(labels, most, numpy_rng_for(self.seed, "data", split))
        return kept if left is None else left[kept]


def find_class_numbers(classes: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """Return the numbers of `classes` in `names`; raise ScenarioError for one that is not there."""
    for name in classes:
        if name not in names:
            raise ScenarioError(
                "data.classes",
                f"no class '{name}'{suggest(name, names)} allowed: {', '.join(names)}",
            )
    return [names.index(name) for name in classes]


def hold_out(
    labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Split all rows into (kept, held out); a stratified `fraction`, rounded up, is held out."""
    out = draw_stratified(labels, math.ceil(fraction * len(labels)), rng)
    return np.setdiff1d(np.arange(len(labels)), out), out
