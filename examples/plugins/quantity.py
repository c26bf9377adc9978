"""A partition: clients differ in how many samples they have, and in nothing else."""

from typing import Literal

import numpy as np
from pydantic import Field

from simsplit.data import Dealing


class QuantityConfig(Dealing):
    """Sizes from one Dirichlet draw over the clients; samples are drawn alike."""

    kind: Literal["quantity"] = "quantity"
    alpha: float = Field(default=0.5, gt=0)
    """Concentration: 0.1 gives nearly everything to few clients, 100 about the same to all."""
    min_samples: int = Field(default=2, ge=1)
    """Fewest samples a client is left with."""

    def draw(self, labels, num_clients, seed):
        """Draw sizes only: rows come shuffled, and clients left short are topped up."""
        shares = np.random.default_rng(seed).dirichlet([self.alpha] * num_clients)
        bounds = np.rint(np.cumsum(shares)[:-1] * len(labels)).astype(int)
        return np.split(np.arange(len(labels)), bounds)

    def get_fewest(self):
        """Return the least number of samples, by which clients are topped up."""
        return self.min_samples


PARTITIONS = {"quantity": QuantityConfig}
