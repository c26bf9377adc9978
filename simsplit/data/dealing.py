"""This module defines the base of partitions, and repairs draws that leave a client too little."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.seeds import derive_seed, numpy_rng_for


class Dealing(Config, ABC):
    """The base of partitions: callers use `deal`; a kind defines `draw`, `fewest` and `check`."""

    def deal(self, labels: np.ndarray, num_clients: int, seed: int) -> Sequence[np.ndarray]:
        """Return each client's rows of `labels`, sorted; every row has exactly one client."""
        self.check(labels, num_clients)
        order = numpy_rng_for(seed, "partition").permutation(len(labels))
        drawn = self.draw(labels[order], num_clients, derive_seed(seed, "partition", "draw"))
        parts = [np.sort(order[part]) for part in top_up(drawn, self.get_fewest())]
        dealt = np.sort(np.concatenate(parts))
        assert np.array_equal(dealt, np.arange(len(labels))), "a row is lost or dealt twice"
        return parts

    @abstractmethod
    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Draw each client's rows of the shuffled `labels`; a client may get too few, or none."""

    def get_fewest(self) -> int:
        """Return the smallest number of samples that a client may have."""
        return 1

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """Raise ScenarioError for a field that cannot be satisfied with these labels."""
        if not 1 <= num_clients <= len(labels):
            raise ScenarioError(
                "clients.count",
                f"must be 1 to the {len(labels)} training samples there are, got {num_clients}",
            )


def top_up(parts: list[np.ndarray], fewest: int) -> list[np.ndarray]:
    """Move as few rows as possible between parts, until none is shorter than `fewest`.

    Each missing row is taken from the end of the part that is largest at that moment.
    """
    sizes = np.array([len(part) for part in parts])
    gained: dict[int, list[int]] = {int(short): [] for short in np.flatnonzero(sizes < fewest)}
    for short, gains in gained.items():
        while sizes[short] < fewest:
            largest = int(sizes.argmax())
            sizes[largest] -= 1
            sizes[short] += 1
            gains.append(int(parts[largest][sizes[largest]]))
    return [
        np.concatenate([part, np.array(gained[client], dtype=np.int64)])
        if client in gained
        else part[: sizes[client]]
        for client, part in enumerate(parts)
    ]
