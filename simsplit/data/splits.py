"""Stratified choices of rows, so that a small held-out part keeps the classes' shares."""

import math
from dataclasses import dataclass

import numpy as np

from simsplit.errors import ScenarioError, near
from simsplit.seeds import numpy_rng_for


def stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` sorted rows whose class shares are those of `labels`, to within one row a class.

    Classes get their share rounded down; the rows left over go to the largest remainders. Unlike
    scikit-learn's splitter this accepts classes of a single row.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shares = sizes * (count / max(1, len(labels)))
    quotas = np.floor(shares).astype(int)
    by_remainder = np.argsort(quotas - shares, kind="stable")
    quotas[by_remainder[: count - quotas.sum()]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:quota]
        for label, quota in zip(classes, quotas, strict=True)
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Limit:
    """At most so many rows of a split, chosen by seed, and of some classes; None: all of them."""

    train: int | None
    test: int | None
    seed: int
    classes: tuple[str, ...] | None = None

    def rows(
        self, labels: np.ndarray, split: str, names: tuple[str, ...] = ()
    ) -> np.ndarray | None:
        """The rows to keep, or None where all may stay; `names` are those of all classes."""
        most = self.train if split == "train" else self.test
        left = None
        if self.classes is not None:
            left = np.flatnonzero(np.isin(labels, numbers_of(self.classes, names)))
            labels = labels[left]
        if most is None or most >= len(labels):
            return left
        kept = stratified(labels, most, numpy_rng_for(self.seed, "data", split))
        return kept if left is None else left[kept]


def numbers_of(classes: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """The numbers that data have for some of their classes."""
    for name in classes:
        if name not in names:
            raise ScenarioError(
                "data.classes", f"no class '{name}'{near(name, names)} allowed: {', '.join(names)}"
            )
    return [names.index(name) for name in classes]


def held_out(
    labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """All rows as (kept, held out), the latter a stratified `fraction` rounded up."""
    out = stratified(labels, math.ceil(fraction * len(labels)), rng)
    return np.setdiff1d(np.arange(len(labels)), out), out
