"""This module draws random numbers that belong to samples and are the same in every epoch.

A label that is replaced anew in every epoch would be revealed by the mean of its replacements. So a
sample's draws depend only on the seed, the client and the sample's row; they are the same on every
host and after a resume. They are drawn in blocks and cached, and a checkpoint need not hold them.
"""

import torch
from torch import Tensor

from simsplit.methods.method import Step
from simsplit.seeds import rng_for

BLOCK = 1024
"""The number of rows that are drawn at once."""


class SampleDraws:
    """`count` uniform numbers in [0, 1) for each sample of each client."""

    def __init__(self, purpose: str, count: int) -> None:
        self.purpose, self.count = purpose, count
        self._blocks: dict[tuple[int, int, int], Tensor] = {}

    def get(self, rows: Tensor, step: Step) -> Tensor:
        """Return the draws of a batch's rows (N x count), on the CPU in double precision."""
        rows = rows.cpu()
        numbers = rows.div(BLOCK, rounding_mode="floor")
        draws = torch.empty(len(rows), self.count, dtype=torch.float64)
        for number in numbers.unique().tolist():
            here = numbers == number
            draws[here] = self._get_block(number, step)[rows[here] - number * BLOCK]
        return draws

    def _get_block(self, number: int, step: Step) -> Tensor:
        key = (step.seed, step.client, number)
        if key not in self._blocks:
            rng = rng_for(step.seed, self.purpose, step.client, number)
            self._blocks[key] = torch.rand(BLOCK, self.count, generator=rng, dtype=torch.float64)
        return self._blocks[key]
