"""Candidates are samples of which an attack asks whether they were trained on.

Half of them are members, samples of one client, and as many are test samples of the same classes:
otherwise a client's own classes would tell its samples from others.
"""

from dataclasses import dataclass

import numpy as np

from simsplit.data.preparing import Prepared
from simsplit.data.samples import Samples, join_samples
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId
from simsplit.seeds import numpy_rng_for


@dataclass(frozen=True)
class Candidates:
    """Samples in a mixed order, half of which were trained on."""

    samples: Samples
    members: np.ndarray
    """Of each sample, whether it was trained on."""


def choose_candidates(data: Prepared, client: ClientId, count: int) -> Candidates:
    """Choose up to `count` of a client's samples, and as many test samples of their classes.

    All seeds of a scenario judge by the same draw, as far as clients have the same samples.
    """
    rng = numpy_rng_for(0, "candidates")
    part = np.asarray(data.parts[client])
    own, others = _match(data.train.groups[part], data.test.groups, rng)
    chosen = rng.permutation(len(own))[:count]
    if not len(chosen):
        raise ScenarioError(
            "targets.client",
            f"client {client} has no class in common with the test samples, of which attacks on "
            "members need as many; choose another client",
        )
    rows = part[own[chosen]]
    whole = join_samples(data.train.take(rows), data.test.take(others[chosen]))
    order = rng.permutation(len(whole))
    return Candidates(whole.take(order), order < len(chosen))


def _match(
    own: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of both sides in pairs of the same class, as many as there are."""
    pairs: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, int), np.empty(0, int))]
    for label in np.unique(own):
        sides = [rng.permutation(np.flatnonzero(each == label)) for each in (own, others)]
        both = min(map(len, sides))
        pairs.append((sides[0][:both], sides[1][:both]))
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)
