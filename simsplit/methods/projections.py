"""Orthonormal projections R (d x k, R^T R = I): two dense ones and a structured one.

Dense (LightSplit, Eq. 3): the Q of a QR decomposition of a d x k matrix, Gaussian as Eq. 3 has it or
uniform(0, 1) as Algorithm 1 has it. The uniform's range holds the all-ones direction almost whole,
which for non-negative activations keeps their mean and little else; hence Gaussian is the default.

Hadamard: random signs, then a Kronecker product of small orthogonal matrices over the factors of d
(Hadamard for powers of two, random orthogonal for the rest), of whose d rows the first k are kept.
Exactly orthonormal for any d, stored in O(sum of factors squared) instead of d k, and applied with
d * sum(factors) multiplications instead of d * k. Ours: the paper has dense matrices only.
"""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from simsplit.seeds import rng_for

Kind = Literal["gaussian", "uniform", "hadamard"]
LARGEST_FACTOR = 1024


class Dense:
    """z R and z R^T with R stored whole."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def down(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, k)."""
        return z @ self.matrix

    def up(self, z: Tensor) -> Tensor:
        """(B, k) -> (B, d)."""
        return z @ self.matrix.T


class Structured:
    """Random signs, then Kronecker factors, of which the first keeps only the rows it needs."""

    def __init__(self, signs: Tensor, factors: list[Tensor], k: int) -> None:
        self.signs = signs
        self.k = k
        tail = signs.numel() // factors[0].shape[0]
        self.first = factors[0][: -(-k // tail)]
        self.rest = factors[1:]

    def down(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, k)."""
        x = (z * self.signs).unflatten(1, (self.first.shape[1], -1))
        x = (self.first @ x).flatten(1)  # mixes the first axis, keeping as many rows as k needs
        outer = self.first.shape[0]
        for factor in self.rest:
            x = factor @ x.reshape(len(z) * outer, factor.shape[1], -1)
            outer *= factor.shape[0]
        return x.reshape(len(z), -1)[:, : self.k]

    def up(self, z: Tensor) -> Tensor:
        """(B, k) -> (B, d)."""
        width = self.first.shape[0] * (self.signs.numel() // self.first.shape[1])
        x = torch.nn.functional.pad(z, (0, width - self.k))
        outer = width
        for factor in reversed(self.rest):
            outer //= factor.shape[0]
            x = factor.T @ x.reshape(len(z) * outer, factor.shape[0], -1)
        x = self.first.T @ x.reshape(len(z), self.first.shape[0], -1)
        return x.reshape(len(z), -1) * self.signs


Projection = Dense | Structured


@lru_cache(maxsize=8)  # every client of a process holds the same R: build and keep it once
def projection(kind: Kind, seed: int, d: int, k: int, device: torch.device) -> Projection:
    """The projection that `seed` stands for; whoever hears the seed builds the same one."""
    rng = rng_for(seed, "projection", kind, d, k)
    if kind == "hadamard":
        signs = torch.randint(0, 2, (d,), generator=rng).float() * 2 - 1
        factors = [_orthogonal(n, rng).to(device) for n in factors_of(d)]
        return Structured(signs.to(device), factors, k)
    draw = torch.randn if kind == "gaussian" else torch.rand
    return Dense(orthonormal(draw(d, k, generator=rng)).to(device))


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q of a thin QR decomposition, in double precision so that R^T R = I to float's last bit."""
    return torch.linalg.qr(matrix.double())[0].float().contiguous()


def factors_of(d: int) -> list[int]:
    """Factors of d, powers of two gathered into at most two of about equal size, largest first."""
    odd, powers = d, 0
    while odd % 2 == 0:
        odd, powers = odd // 2, powers + 1
    factors = [2 ** (powers - powers // 2), 2 ** (powers // 2)]
    prime = 3
    while odd > 1:
        while odd % prime == 0:
            factors.append(prime)
            odd //= prime
        prime += 2
    factors = _gathered(sorted(n for n in factors if n > 1))
    return sorted(factors, reverse=True) or [1]


def _gathered(factors: list[int]) -> list[int]:
    """Multiply small odd factors together while that stays below 32: fewer, fuller products."""
    odd = [n for n in factors if n % 2]
    gathered = [n for n in factors if n % 2 == 0]
    while odd:
        product = odd.pop()
        while odd and product * odd[-1] <= 32:
            product *= odd.pop()
        gathered.append(product)
    return gathered


def _orthogonal(n: int, rng: torch.Generator) -> Tensor:
    if n & (n - 1) == 0:
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < n:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
        return matrix / n**0.5
    return orthonormal(torch.randn(n, n, generator=rng))
