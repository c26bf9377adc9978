"""Random draws that belong to samples: the same in every epoch, on every host, after a resumption.

A label that is changed anew in every epoch gives itself away by its mean; so what is drawn for a
sample is a function of the seed, the client and the sample's row. Draws are made by the block and
kept; nothing of them need be saved.
"""

import torch
from torch import Tensor

from simsplit.methods.base import Step
from simsplit.seeds import rng_for

BLOCK = 1024
"""Rows whose draws are made at once."""


class SampleDraws:
    """Uniform numbers in [0, 1) for each sample of each client, `count` of them."""

    def __init__(self, purpose: str, count: int) -> None:
        self.purpose, self.count = purpose, count
        self._blocks: dict[tuple[int, int, int], Tensor] = {}

    def of(self, rows: Tensor, step: Step) -> Tensor:
        """Those of a batch's rows, on the CPU: N x count, in double precision."""
        rows = rows.cpu()
        numbers = rows.div(BLOCK, rounding_mode="floor")
        drawn = torch.empty(len(rows), self.count, dtype=torch.float64)
        for number in numbers.unique().tolist():
            here = numbers == number
            drawn[here] = self._block(number, step)[rows[here] - number * BLOCK]
        return drawn

    def _block(self, number: int, step: Step) -> Tensor:
        key = (step.seed, step.client, number)
        if key not in self._blocks:
            rng = rng_for(step.seed, self.purpose, step.client, number)
            self._blocks[key] = torch.rand(BLOCK, self.count, generator=rng, dtype=torch.float64)
        return self._blocks[key]
