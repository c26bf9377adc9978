"""This module draws orthonormal projections R (d x k, R^T R = I): dense ones and a structured one.

Dense projections (LightSplit, Eq. 3) are the Q of a QR decomposition of a d x k matrix, which is
Gaussian as in Eq. 3 or uniform(0, 1) as in Algorithm 1. The range of the uniform one contains the
all-ones direction almost completely; for non-negative activations it keeps their mean and little
else. So Gaussian is the default.

The structured projection (ours; the paper has dense matrices only) is a subsampled randomised
Hadamard transform (Ailon and Chazelle 2009; Tropp 2011). Random signs are followed by k rows of the
Kronecker product of two orthogonal matrices whose sizes multiply to d; these are Hadamard matrices
for powers of two, and random orthogonal matrices otherwise. The kept rows combine each row of the
first matrix with its own random rows of the second. The first k rows would mix along one axis of
the activation only, and keep some of its channels almost completely and others hardly at all. The
projection is exactly orthonormal for any d. It needs about d sqrt(d) multiplications and stores
about k sqrt(d) values, instead of d k each.
"""

from functools import lru_cache
from math import isqrt
from typing import Literal

import torch
from torch import Tensor

from simsplit.seeds import rng_for

Kind = Literal["gaussian", "uniform", "hadamard"]
LARGEST_FACTOR = 1024
"""The largest size of the structured projection's two matrices, which are stored in full."""


class Dense:
    """A projection whose matrix R is stored in full."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def project(self, z: Tensor) -> Tensor:
        """Project from (B, d) to (B, k)."""
        return z @ self.matrix

    def lift(self, z: Tensor) -> Tensor:
        """Lift from (B, k) to (B, d), by R^T."""
        return z @ self.matrix.T


class Structured:
    """Signs, an orthogonal matrix along one axis of (P, Q), and rows of another along the other.

    Shapes: B samples; P * Q = d; M rows are kept for each of the P rows, where P * M is the
    smallest multiple of P that is at least k.
    """

    def __init__(self, signs_D: Tensor, mix_PP: Tensor, rows_PMQ: Tensor, k: int) -> None:
        self.signs_D = signs_D
        self.mix_PP = mix_PP
        self.rows_PMQ = rows_PMQ
        self.k = k

    def project(self, z: Tensor) -> Tensor:
        """Project from (B, d) to (B, k)."""
        P, _, Q = self.rows_PMQ.shape
        x_BPQ = (z * self.signs_D).unflatten(1, (P, Q))
        x_BPQ = torch.bmm(self.mix_PP.expand(len(z), P, P), x_BPQ)
        x_PBM = torch.bmm(x_BPQ.transpose(0, 1), self.rows_PMQ.mT)
        return x_PBM.permute(1, 2, 0).flatten(1)[:, : self.k]

    def lift(self, z: Tensor) -> Tensor:
        """Lift from (B, k) to (B, d), by R^T."""
        P, M, _ = self.rows_PMQ.shape
        x_BMP = torch.nn.functional.pad(z, (0, M * P - self.k)).unflatten(1, (M, P))
        x_BPQ = torch.bmm(x_BMP.permute(2, 0, 1), self.rows_PMQ).transpose(0, 1)
        x_BPQ = torch.bmm(self.mix_PP.mT.expand(len(z), P, P), x_BPQ)
        return x_BPQ.flatten(1) * self.signs_D


Projection = Dense | Structured


@lru_cache(maxsize=8)  # all clients of a process share one R
def draw_projection(kind: Kind, seed: int, d: int, k: int, device: torch.device) -> Projection:
    """Draw a projection from `seed`; the same seed gives the same projection on both sides."""
    rng = rng_for(seed, "projection", kind, d, k)
    if kind == "hadamard":
        signs_D = torch.randint(0, 2, (d,), generator=rng).float() * 2 - 1
        P, Q = factorise(d)
        mix_PP, rows_QQ = _draw_orthogonal(P, rng), _draw_orthogonal(Q, rng)
        kept_PM = torch.rand(P, Q, generator=rng).argsort(1)[:, : -(-k // P)]
        return Structured(signs_D.to(device), mix_PP.to(device), rows_QQ[kept_PM].to(device), k)
    draw = torch.randn if kind == "gaussian" else torch.rand
    return Dense(orthonormalise(draw(d, k, generator=rng)).to(device))


def orthonormalise(matrix: Tensor) -> Tensor:
    """Return the Q of a thin QR decomposition."""
    # In double precision, so that R^T R = I to the precision of float32.
    q: Tensor = torch.linalg.qr(matrix.double())[0]
    return q.float().contiguous()


def factorise(d: int) -> tuple[int, int]:
    """Return the two factors of d that are closest to each other, the smaller first."""
    small = isqrt(d)
    while d % small:
        small -= 1
    return small, d // small


def _draw_orthogonal(n: int, rng: torch.Generator) -> Tensor:
    """Return a Hadamard matrix if n is a power of two, else draw a random orthogonal matrix."""
    if n & (n - 1) == 0:
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < n:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
        return matrix.div(n**0.5)
    return orthonormalise(torch.randn(n, n, generator=rng))
