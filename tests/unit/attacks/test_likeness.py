"""FORA's measure of likeness, against its definition written as loops."""

import math

import pytest
import torch

from simsplit.attacks.fora import mk_mmd


def draw(rows, shift=0.0, seed=0):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) + shift


def by_hand(x, y):
    both = [row.tolist() for row in torch.cat([x, y])]
    far = [[sum((a - b) ** 2 for a, b in zip(u, v, strict=True)) for v in both] for u in both]
    width = sum(map(sum, far)) / len(both) ** 2
    scales = (1 / 8, 1 / 4, 1 / 2, 1, 2)

    def like(i, j):
        return sum(math.exp(-far[i][j] / (2 * scale * width)) for scale in scales)

    n, m = len(x), len(y)
    one, two = range(n), range(n, n + m)
    within = sum(like(i, j) for i in one for j in one if i != j) / (n * (n - 1))
    other = sum(like(i, j) for i in two for j in two if i != j) / (m * (m - 1))
    return within + other - 2 * sum(like(i, j) for i in one for j in two) / (n * m)


@pytest.mark.parametrize(("rows", "shift"), [((5, 5), 0.0), ((4, 7), 1.0)])
def test_mmd_is_the_unbiased_one(rows, shift):
    x, y = draw(rows[0]), draw(rows[1], shift, seed=1)
    assert mk_mmd(x, y).item() == pytest.approx(by_hand(x, y), abs=1e-5)


def test_other_distributions_are_further_away():
    x, same, other = draw(200), draw(200, seed=1), draw(200, 1.0, seed=2)
    assert mk_mmd(x, same) < 0.05 < mk_mmd(x, other)
