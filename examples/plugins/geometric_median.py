"""A strategy: the weights with the least distance to all clients' (Pillutla et al. 2022)."""

from typing import Literal

import torch
from pydantic import Field

from simsplit.schedules.averaging import StrategyConfig


class GeometricMedianConfig(StrategyConfig):
    """The geometric median of what clients trained: half of them may lie, and it hardly moves."""

    kind: Literal["geometric_median"] = "geometric_median"
    iterations: int = Field(default=8, ge=1)
    """Of Weiszfeld's algorithm, which starts at the mean."""

    def make_strategy(self):
        """Make anything with Flower's `aggregate_train`.

        A shipped one makes a strategy of Flower's.
        """
        return Weiszfeld(self.iterations)


class Weiszfeld:
    """Mean after mean, in which a client counts less the farther it is off."""

    def __init__(self, iterations):
        self.iterations = iterations

    def aggregate_train(self, server_round, replies):
        """Take Flower's messages, and return its record of arrays and no metrics."""
        from flwr.app import ArrayRecord

        states = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
        rows = torch.stack([torch.cat([t.flatten() for t in s.values()]) for s in states])
        middle = rows.mean(0)
        for _ in range(self.iterations):
            closeness = 1 / (rows - middle).norm(dim=1).clamp_min(1e-6)
            middle = (closeness[:, None] * rows).sum(0) / closeness.sum()
        sizes = [tensor.numel() for tensor in states[0].values()]
        parts = zip(states[0].items(), middle.split(sizes), strict=True)
        return ArrayRecord({name: part.view_as(old) for (name, old), part in parts}), None


STRATEGIES = {"geometric_median": GeometricMedianConfig}
