"""Parts that are functions of a client's number, so that a million of them cost nothing.

Partitions that give each sample one client return a list of arrays, as long as the data. Where
clients draw their own samples, nothing bounds the number of clients by that of samples, and a list
would take more memory than the run. So these parts are made when they are asked for.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import overload

import numpy as np

from simsplit.seeds import numpy_rng_for


class MadeParts(Sequence[np.ndarray]):
    """Each client's rows, made when they are asked for; all clients have equally many."""

    def __init__(self, num_clients: int, size: int, make: Callable[[int], np.ndarray]) -> None:
        """Make the parts of so many clients, each of `size` rows; `make` returns a client's."""
        self.num_clients, self.size, self.make = num_clients, size, make

    def __len__(self) -> int:
        return self.num_clients

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> list[np.ndarray]: ...
    def __getitem__(self, client: int | slice) -> np.ndarray | list[np.ndarray]:
        """Return a client's rows, or those of several."""
        if isinstance(client, slice):
            return [self.make(each) for each in range(self.num_clients)[client]]
        return self.make(range(self.num_clients)[client])


def draw_parts(
    labels: np.ndarray, count: int, size: int, alpha: float | None, seed: int
) -> MadeParts:
    """Return rows that each client draws from all of them, by the seed and its number alone.

    With `alpha`, a client first draws its shares of the classes, as in Hsu et al. (2019): from a
    Dirichlet distribution around the classes' shares of the data.
    """
    by_class = [labels]  # without shares of classes only their number counts
    if alpha is not None:
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        by_class = np.split(order, starts[1:])
    return MadeParts(count, size, partial(_draw, by_class, size, alpha, seed))


def _draw(
    by_class: list[np.ndarray], size: int, alpha: float | None, seed: int, client: int
) -> np.ndarray:
    """Draw a client's rows."""
    rng, held = numpy_rng_for(seed, "partition", "drawn", client), [*map(len, by_class)]
    if alpha is None:
        return np.sort(rng.choice(sum(held), size, replace=False))
    shares = rng.dirichlet(alpha * np.array(held) / sum(held))
    wanted = rng.multinomial(size, shares)
    drawn = [
        rng.choice(rows, count, replace=count > len(rows))
        for rows, count in zip(by_class, wanted, strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def count_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return each client's number of rows.

    >>> count_rows([np.arange(3), np.arange(0)])
    array([3, 0])
    """
    if isinstance(parts, MadeParts):
        return np.full(parts.num_clients, parts.size, np.int64)
    return np.fromiter(map(len, parts), np.int64, len(parts))
