"""Orthonormal projections R (d x k, R^T R = I): two dense ones and a structured one.

Dense (LightSplit, Eq. 3): the Q of a QR decomposition of a d x k matrix, Gaussian as Eq. 3 has it
or uniform(0, 1) as Algorithm 1 has it. The uniform's range holds the all-ones direction almost
whole, which for non-negative activations keeps their mean and little else; hence Gaussian is the
default.

Hadamard: a subsampled randomised Hadamard transform (Ailon and Chazelle 2009; Tropp 2011). Random
signs, then the Kronecker product of two orthogonal matrices whose sizes multiply to d (Hadamard
for powers of two, random orthogonal otherwise), of whose d rows k are kept: for each row of the
first matrix its own random few of the second's. The first k rows instead would mix along one axis
of the activation only, and keep some of its channels almost whole and others hardly at all.
Exactly orthonormal for any d; of the order of d sqrt(d) multiplications and k sqrt(d) stored
values instead of d k of each. Ours: the paper has dense matrices only.
"""

from functools import lru_cache
from math import isqrt
from typing import Literal

import torch
from torch import Tensor

from simsplit.seeds import rng_for

Kind = Literal["gaussian", "uniform", "hadamard"]
LARGEST_FACTOR = 1024


class Dense:
    """z R and z R^T with R stored in full."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def down(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, k)."""
        return z @ self.matrix

    def up(self, z: Tensor) -> Tensor:
        """(B, k) -> (B, d)."""
        return z @ self.matrix.T


class Structured:
    """Signs, an orthogonal matrix along one axis of (P, Q), rows of another along the other.

    Shapes: B samples, P * Q = d, M rows kept for each of the P, so that P * M is k or barely more.
    """

    def __init__(self, signs_D: Tensor, mix_PP: Tensor, rows_PMQ: Tensor, k: int) -> None:
        self.signs_D = signs_D
        self.mix_PP = mix_PP
        self.rows_PMQ = rows_PMQ
        self.k = k

    def down(self, z: Tensor) -> Tensor:
        """(B, d) -> (B, k)."""
        P, _, Q = self.rows_PMQ.shape
        x_BPQ = (z * self.signs_D).unflatten(1, (P, Q))
        x_BPQ = torch.bmm(self.mix_PP.expand(len(z), P, P), x_BPQ)
        x_PBM = torch.bmm(x_BPQ.transpose(0, 1), self.rows_PMQ.mT)
        return x_PBM.permute(1, 2, 0).flatten(1)[:, : self.k]

    def up(self, z: Tensor) -> Tensor:
        """(B, k) -> (B, d)."""
        P, M, _ = self.rows_PMQ.shape
        x_BMP = torch.nn.functional.pad(z, (0, M * P - self.k)).unflatten(1, (M, P))
        x_BPQ = torch.bmm(x_BMP.permute(2, 0, 1), self.rows_PMQ).transpose(0, 1)
        x_BPQ = torch.bmm(self.mix_PP.mT.expand(len(z), P, P), x_BPQ)
        return x_BPQ.flatten(1) * self.signs_D


Projection = Dense | Structured


@lru_cache(maxsize=8)  # every client of a process holds the same R: build and keep it once
def projection(kind: Kind, seed: int, d: int, k: int, device: torch.device) -> Projection:
    """The projection drawn from `seed`; the same seed gives the same one on both sides."""
    rng = rng_for(seed, "projection", kind, d, k)
    if kind == "hadamard":
        signs_D = torch.randint(0, 2, (d,), generator=rng).float() * 2 - 1
        P, Q = factors_of(d)
        mix_PP, every_QQ = _orthogonal(P, rng), _orthogonal(Q, rng)
        kept_PM = torch.rand(P, Q, generator=rng).argsort(1)[:, : -(-k // P)]
        return Structured(signs_D.to(device), mix_PP.to(device), every_QQ[kept_PM].to(device), k)
    draw = torch.randn if kind == "gaussian" else torch.rand
    return Dense(orthonormal(draw(d, k, generator=rng)).to(device))


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q of a thin QR decomposition, in double precision so that R^T R = I in float32."""
    q: Tensor = torch.linalg.qr(matrix.double())[0]
    return q.float().contiguous()


def factors_of(d: int) -> tuple[int, int]:
    """The factorisation of d into two factors that are closest to each other, smaller first."""
    small = isqrt(d)
    while d % small:
        small -= 1
    return small, d // small


def _orthogonal(n: int, rng: torch.Generator) -> Tensor:
    if n & (n - 1) == 0:
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < n:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
        return matrix.div(n**0.5)
    return orthonormal(torch.randn(n, n, generator=rng))
