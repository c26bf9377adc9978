"""Parts that are functions of a client's number, so that a million of them cost nothing.

Partitions that give each sample one client return a list of arrays, as long as the data. Where
clients draw their own samples, nothing bounds the number of clients by that of samples, and a list
would take more memory than the run. So these parts are made when they are asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from simsplit.seeds import numpy_rng_for


class MadeParts(Sequence[np.ndarray], ABC):
    """Each client's rows, made when they are asked for; all clients have equally many."""

    def __init__(self, num_clients: int, size: int) -> None:
        """Make the parts of so many clients, each of `size` rows."""
        self.num_clients, self.size = num_clients, size

    @abstractmethod
    def make(self, client: int) -> np.ndarray:
        """Make a client's rows, in order."""

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

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.make, range(self.num_clients))


class DrawnParts(MadeParts):
    """Rows that each client draws from all of them, by the seed and its number alone.

    With `alpha`, a client first draws its shares of the classes, as in Hsu et al. (2019): from a
    Dirichlet distribution around the classes' shares of the data.
    """

    def __init__(
        self, labels: np.ndarray, count: int, size: int, alpha: float | None, seed: int
    ) -> None:
        super().__init__(count, size)
        self.labels, self.alpha, self.seed = labels, alpha, seed

    @cached_property
    def _classes(self) -> list[np.ndarray]:
        """The rows of each class that there is."""
        order = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[order], return_index=True)
        return np.split(order, starts[1:])

    def make(self, client: int) -> np.ndarray:
        rng = numpy_rng_for(self.seed, "partition", "drawn", client)
        if self.alpha is None:
            return np.sort(rng.choice(len(self.labels), self.size, replace=False))
        held = np.array([len(rows) for rows in self._classes])
        shares = rng.dirichlet(self.alpha * held / held.sum())
        wanted = rng.multinomial(self.size, shares)
        drawn = [
            rng.choice(rows, count, replace=count > len(rows))
            for rows, count in zip(self._classes, wanted, strict=True)
        ]
        return np.sort(np.concatenate(drawn))


class SameParts(MadeParts):
    """The same rows for every client, which stand for rows that are not known."""

    def __init__(self, rows: np.ndarray, count: int) -> None:
        super().__init__(count, len(rows))
        self.rows = rows

    def make(self, client: int) -> np.ndarray:
        del client
        return self.rows


def count_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return each client's number of rows.

    >>> count_rows([np.arange(3), np.arange(0)])
    array([3, 0])
    """
    if isinstance(parts, MadeParts):
        return np.full(parts.num_clients, parts.size, np.int64)
    return np.fromiter(map(len, parts), np.int64, len(parts))
