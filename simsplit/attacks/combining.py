"""Combining the features of several adapter sets, which one server may hold all of.

P3EFT trains each set not to tell labels, while the client's head reads a secret mixture of them. So
some combination does tell labels, and for wide secret weights it is nearly the difference: the
weights of two sets sum to one for each value, and what is large in them has opposite signs.

Other combinations are searched without labels. Two classes that are apart make the first principal
component two-peaked, and then its kurtosis is low: 1 for two equal points, 3 for a normal
distribution. The sum with the least kurtosis counts.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from simsplit.seeds import rng_for

STARTS, NEAR, PASSES = 48, 12, 4
"""Number of first weights, and of weights nearby that each of several passes tries."""
STEPS = 25
"""Number of steps of the power iteration for a first component, which need not be exact."""


def subtract_pairs(sets: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Return the differences of all pairs of sets, each N x D."""
    del seed
    return [one - other for one, other in combinations(sets, 2)]


def search_sum(sets: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Return the sum of the sets that makes the first component most two-peaked, N x D."""
    rng = rng_for(seed, "searched weights")
    rows_SND = torch.stack(list(sets)).float()
    rows_SND = rows_SND - rows_SND.mean(1, keepdim=True)
    start = torch.randn(rows_SND.shape[-1], generator=rng)
    drawn = torch.randn(STARTS, len(rows_SND), generator=rng)
    # What all sets have in common hides labels, and cancels in the smallest sums.
    flat = rows_SND.flatten(1).double()
    drawn = torch.cat([drawn, torch.linalg.eigh(flat @ flat.T).eigenvectors.T.float()])
    # Small errors of such weights spoil the sum, so passes nearby follow.
    best, least, radius = drawn[0], float("inf"), 0.2
    for number in range(PASSES + 1):
        if number:
            drawn = best + radius * torch.randn(NEAR, len(rows_SND), generator=rng)
            radius /= 3
        for weights in torch.nn.functional.normalize(drawn):
            peaks = measure_kurtosis(_add(rows_SND, weights), start)
            if peaks < least:
                best, least = weights, peaks
    return [_add(torch.stack(list(sets)).float(), best)]


def measure_kurtosis(rows_ND: Tensor, start_D: Tensor) -> float:
    """Compute the kurtosis of the first principal component of centred rows."""
    direction = start_D
    for _ in range(STEPS):
        direction = torch.nn.functional.normalize(rows_ND.T @ (rows_ND @ direction), dim=0)
    scores = rows_ND @ direction
    spread = scores.square().mean()
    return float(scores.pow(4).mean() / spread.square().clamp_min(1e-30)) if spread > 0 else 3.0


def _add(rows_SND: Tensor, weights_S: Tensor) -> Tensor:
    added: Tensor = torch.tensordot(weights_S, rows_SND, 1)
    return added
