"""Canaries are samples of a client that a coin chooses, for an audit of what a run reveals.

A canary is a pair of samples in one place of the client's data: a fair coin decides which of the
two is trained on, and the other is not. So the two data sets that a coin chooses between are
neighbours as a guarantee has them: one sample is replaced, and none is added or removed. Labels are
drawn anew, since a network remembers a wrong label best.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from simsplit.data.preparing import Prepared
from simsplit.data.samples import Canaries
from simsplit.errors import ScenarioError, format_count
from simsplit.legs import ClientId
from simsplit.seeds import numpy_rng_for

Differing = Literal["input", "label", "sample"]


def plant_canaries(
    data: Prepared, client: ClientId, count: int, differing: Differing, *, seed: int, where: str
) -> Prepared:
    """Return data in which coins chose `count` samples of a client.

    Raise ScenarioError, which names the field `where`, if the client has too few samples.
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
    # The rows and labels of both samples of each pair; one row, if they differ by the label alone.
    both, labels = np.concatenate([rows, rows])[:2], _draw_labels(data, rows, differing, rng)
    first = rng.random(count) < 0.5
    chosen = np.where(first, *both)
    kept = np.setdiff1d(part, both[1]) if differing != "label" else part
    by_first = dict(zip(both[0], chosen, strict=True))
    kept = np.array([by_first.get(row, row) for row in kept], dtype=kept.dtype)
    trained, coin = data.train.labels.clone(), torch.from_numpy(first)
    one, other = labels
    coin = coin if one.ndim == 1 else coin[:, None]
    trained[torch.from_numpy(chosen)] = torch.where(coin, one, other)
    parts = [kept if each == client else own for each, own in enumerate(data.parts)]
    beside = data.train.take(both.reshape(-1))
    canaries = Canaries(client, replace(beside, labels=labels.flatten(0, 1)), first)
    train = replace(data.train, labels=trained)
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
