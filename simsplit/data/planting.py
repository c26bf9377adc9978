"""Canaries are samples of a client that a coin chooses, for an audit of what a run reveals.

A canary is a pair of samples in one place of the client's data: a fair coin decides which of the
two is trained on, and the other is not. So the two data sets that a coin chooses between are
neighbours as a guarantee has them: one sample is replaced, and none is added or removed. Labels are
drawn anew, since a network remembers a wrong label best.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from simsplit.data.preparing import Prepared
from simsplit.data.samples import Canaries, Samples
from simsplit.errors import ScenarioError, format_count
from simsplit.legs import ClientId
from simsplit.seeds import numpy_rng_for

Differing = Literal["input", "label", "sample"]


@dataclass(frozen=True)
class _Pairs:
    """Rows of the training samples and labels, of both samples of each pair."""

    rows: np.ndarray
    """2 x m: of the same row, if the pair differs by its label alone."""
    labels: Tensor
    """As many labels as the samples have, 2 x m."""


def plant_canaries(
    data: Prepared, client: ClientId, count: int, differing: Differing, *, seed: int, where: str
) -> Prepared:
    """Return data in which `count` samples of a client were chosen by coins.

    ScenarioError names the field `where` if the client has too few samples.
    """
    if data.canaries is not None:
        raise ScenarioError(where, "canaries are planted already; list one such attack")
    if data.train.texts is not None and differing != "sample":
        raise ScenarioError(
            where, f"differing: {differing} is for images and tables; texts differ by the sample"
        )
    part = np.asarray(data.parts[client])
    rng = numpy_rng_for(seed, "data", "canaries", client)
    sides = 1 if differing == "label" else 2
    if sides * count > len(part) // 2:
        raise ScenarioError(
            where,
            f"must be at most {len(part) // (2 * sides)}: half of the client's "
            f"{format_count(len(part), 'sample')} may take part in pairs, got {count}",
        )
    rows = rng.permutation(part)[: sides * count].reshape(sides, count)
    pairs = _Pairs(np.concatenate([rows, rows])[:2], _draw_labels(data, rows, differing, rng))
    first = rng.random(count) < 0.5
    kept = np.setdiff1d(part, pairs.rows[1]) if differing != "label" else part
    kept = np.where(np.isin(kept, pairs.rows[0]), _choose(pairs, first, kept), kept)
    train = _relabel(data.train, pairs, first)
    parts = [kept if each == client else rows for each, rows in enumerate(data.parts)]
    beside = train.take(pairs.rows.reshape(-1))
    canaries = Canaries(client, replace(beside, labels=pairs.labels.flatten(0, 1)), first)
    return replace(data, train=train, parts=parts, canaries=canaries)


def _draw_labels(
    data: Prepared, rows: np.ndarray, differing: Differing, rng: np.random.Generator
) -> Tensor:
    """Draw labels of both samples of each pair; texts, whose labels are tokens, keep theirs."""
    if data.train.texts is not None:
        return data.train.labels[torch.from_numpy(rows)]
    classes, count = data.info.classes, rows.shape[1]
    labels = rng.integers(classes, size=count)
    others = labels if differing == "input" else rng.integers(classes, size=count)
    if differing == "label":
        others = (labels + 1 + rng.integers(classes - 1, size=count)) % classes
    return torch.from_numpy(np.stack([labels, others]))


def _choose(pairs: _Pairs, first: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return, for each kept row that is the first of a pair, the row that its coin chose."""
    chosen = dict(zip(pairs.rows[0], np.where(first, *pairs.rows), strict=True))
    return np.array([chosen.get(row, row) for row in kept], dtype=kept.dtype)


def _relabel(train: Samples, pairs: _Pairs, first: np.ndarray) -> Samples:
    """Return training samples in which the chosen sample of each pair has its own label."""
    labels, coin = train.labels.clone(), torch.from_numpy(first)
    chosen = torch.from_numpy(np.where(first, *pairs.rows))
    one, other = pairs.labels
    labels[chosen] = torch.where(coin if one.ndim == 1 else coin[:, None], one, other)
    return replace(train, labels=labels)
