"""Who helps and who hurts: leave-one-out and Shapley values, from the scores of coalitions.

A coalition is a set of clients that train without the others; its value is the final score. The
Shapley value of a client is its mean change of the score over all orders in which clients can join
(Shapley, 1953). It is exact where all coalitions are tried. Otherwise orders are sampled, and the
rest of an order is not tried once the score is as good as everybody's (Ghorbani and Zou, Data
Shapley, 2019). There we depart from the paper: what is left of the score is shared equally by the
clients that were not tried, so that values still sum to the score of all minus that of nobody.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simsplit.legs import ClientId
from simsplit.metrics.intervals import compute_half_width
from simsplit.seeds import numpy_rng_for

Members = frozenset[ClientId]
Scores = NDArray[np.float64]
"""The score of each evaluation sample, or one score alone; more is better."""
Value = Callable[[Members, int], Scores]
"""Returns the scores of a coalition, trained with a seed."""
Over = Literal["seeds", "samples", "orders", ""]


@dataclass(frozen=True)
class ClientEffect:
    """How much a client changes the score: above 0 it helps, below it hurts."""

    client: ClientId
    value: float
    low: float | None = None
    high: float | None = None
    standard_error: float | None = None
    over: Over = ""
    """What the interval is over: seeds, evaluation samples, or sampled orders; empty: none."""


def leave_one_out(
    value: Value, clients: Sequence[ClientId], seeds: Sequence[int]
) -> list[ClientEffect]:
    """Return what each client changes when it joins all others."""
    everybody, found = frozenset(clients), []
    for client in clients:
        others = everybody - {client}
        changes = [_subtract(value(everybody, seed), value(others, seed)) for seed in seeds]
        found.append(_estimate(client, changes))
    return found


def compute_shapley(
    value: Value, clients: Sequence[ClientId], seeds: Sequence[int]
) -> list[ClientEffect]:
    """Return exact Shapley values, from all coalitions."""
    return [
        _estimate(client, [_weigh(value, clients, client, seed) for seed in seeds])
        for client in clients
    ]


def _subtract(one: Scores, other: Scores) -> Scores:
    """Return the difference sample by sample, or of the means if one has no score of each."""
    if one.shape == other.shape:
        return one - other
    # A mean that numpy takes from each sample would have an interval that is too narrow.
    return np.array([one.mean() - other.mean()])


def _weigh(value: Value, clients: Sequence[ClientId], client: ClientId, seed: int) -> Scores:
    """Return a client's changes of all coalitions of the others, weighed by their orders."""
    others, count = [each for each in clients if each != client], len(clients)
    total: Scores = np.zeros_like(value(frozenset(clients), seed))
    for size in range(count):
        weight = 1 / (count * math.comb(count - 1, size))
        for before in map(frozenset, combinations(others, size)):
            change = _subtract(value(before | {client}, seed), value(before, seed))
            total = _subtract(total, -weight * change)
    return total


def sample_shapley(
    value: Value,
    clients: Sequence[ClientId],
    seeds: Sequence[int],
    orders: int,
    tolerance: float,
) -> list[ClientEffect]:
    """Estimate Shapley values from some orders, each trained with one of the seeds in turn.

    An order is cut off once its score is within `tolerance` of everybody's.
    """
    places = {client: place for place, client in enumerate(clients)}
    changes = np.zeros((orders, len(clients)))
    for number, (order, seed) in enumerate(draw_orders(clients, seeds, orders)):
        for client, change in _join(value, order, seed, tolerance):
            changes[number, places[client]] = change
    made = [_estimate(client, [changes[:, places[client]]]) for client in clients]
    return [replace(each, over="orders") if each.over else each for each in made]


def draw_orders(
    clients: Sequence[ClientId], seeds: Sequence[int], orders: int
) -> Iterator[tuple[list[ClientId], int]]:
    """Yield orders of clients with seeds; a longer series begins with the shorter one's.

    None comes twice with one seed before all have come: it would be trained again for nothing, and
    agree with itself.
    """
    seen: dict[int, set[tuple[int, ...]]] = {seed: set() for seed in seeds}
    for number in range(orders):
        seed = seeds[number % len(seeds)]
        rng = numpy_rng_for(seeds[0], "shapley", number)
        places = rng.permutation(len(clients))
        while tuple(places) in seen[seed] and len(seen[seed]) < math.factorial(len(clients)):
            places = rng.permutation(len(clients))
        seen[seed].add(tuple(places))
        yield [clients[each] for each in places], seed


def _join(
    value: Value, order: Sequence[ClientId], seed: int, tolerance: float
) -> Iterator[tuple[ClientId, float]]:
    """Yield what each client of an order changes when it joins those before it."""
    final = float(value(frozenset(order), seed).mean())
    before: Members = frozenset()
    score = float(value(before, seed).mean())
    for place, client in enumerate(order):
        left = order[place:]
        # The last one always brings the score of all, so nothing is saved by cutting it off.
        if place and len(left) > 1 and abs(final - score) <= tolerance:
            yield from ((each, (final - score) / len(left)) for each in left)
            return
        before |= {client}
        joined = float(value(before, seed).mean())
        yield client, joined - score
        score = joined


def _estimate(client: ClientId, changes: Sequence[Scores]) -> ClientEffect:
    """Return a mean with its interval, over seeds if there are several, else over samples."""
    over: Over = "seeds" if len(changes) > 1 else "samples"
    values = [float(each.mean()) for each in changes] if len(changes) > 1 else [*changes[0]]
    mean = float(np.mean(values))
    half = compute_half_width(values)
    if half is None:
        return ClientEffect(client, mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return ClientEffect(client, mean, mean - half, mean + half, error, over)


def measure_noise(scores: Scores) -> float:
    """Return the standard error of a score over its evaluation samples; 0 if they are not known."""
    return float(np.std(scores, ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0


def list_coalitions(
    clients: Sequence[ClientId], seeds: Sequence[int], orders: int
) -> list[tuple[Members, int]]:
    """List the coalitions and seeds that Shapley values need at most, some of them twice."""
    count = len(clients)
    if is_exact(count, orders):
        every = (each for size in range(count + 1) for each in combinations(clients, size))
        return [(frozenset(each), seed) for each in every for seed in seeds]
    drawn = draw_orders(clients, seeds, orders)
    return [(frozenset(order[:n]), seed) for order, seed in drawn for n in range(count + 1)]


def is_exact(num_clients: int, orders: int) -> bool:
    """Return whether so many orders are all that there are."""
    return num_clients < 20 and math.factorial(num_clients) <= orders
