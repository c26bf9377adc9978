"""This module implements LightSplit (arXiv 2605.13265): clients send a projection to k values.

z~ = z R with R^T R = I, drawn once and broadcast (Eq. 2-3). The server lifts z~ by R^T ("fixed",
LightSplit-F, Eq. 4) or by an MLP that is trained with the trunk ("learned", LightSplit-L, Eq. 7).
The paper leaves open how k is rounded; here k = floor(d / ratio). Our additions: a seed may be
broadcast instead of R, and features, which the paper sends at full size, may be projected too
(`legs`); then the server encodes and the client lifts.

A dense R (Eq. 3) is the Q of a QR decomposition of a d x k matrix, which is Gaussian as in Eq. 3 or
uniform(0, 1) as in Algorithm 1. The range of the uniform one contains the all-ones direction almost
completely; for non-negative activations it keeps their mean and little else. So Gaussian is the
default.

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
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from simsplit.errors import ProtocolError, ScenarioError
from simsplit.methods.method import CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.models.layers import BatchNorm1d
from simsplit.seeds import isolate, rng_for

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


class LightSplitConfig(CodecConfig):
    """A fixed orthonormal projection at the sender, lifted back at the receiver."""

    kind: Literal["lightsplit"] = "lightsplit"
    ratio: float | None = Field(default=None, ge=1)
    """Compression ratio: k = floor(d / ratio) of d values are sent. Set this or `k`; if neither is
    set, the ratio is 8."""
    k: int | None = Field(default=None, ge=1)
    """Values per sample on the wire; set this or `ratio`."""
    lift: Literal["fixed", "learned"] = "fixed"
    """How the receiver lifts: `fixed` by R^T (LightSplit-F), `learned` by an MLP (LightSplit-L)."""
    hidden: int = Field(default=512, ge=1)
    """Hidden width of the learned lift. Published: 512 on CIFAR-10, 2048 on CIFAR-100, 128 else."""
    projection: Kind = "gaussian"
    """How R is drawn. `hadamard` needs no d x k matrix, and is faster for large d."""
    broadcast: Literal["seed", "matrix"] = "seed"
    """Whether clients receive a seed or the matrix before training; its bytes are counted."""
    required_traits = frozenset({Trait.VALUES})
    ended_traits = frozenset({Trait.SHAPE})
    once = True

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.ratio is not None and self.k is not None:
            raise ValueError("give ratio or k, not both")
        if self.projection == "hadamard" and self.broadcast == "matrix":
            raise ValueError(
                "broadcast must be seed with projection: hadamard, which has no matrix; got matrix"
            )
        return self

    def compute_k(self, d: int) -> int:
        """Return the number of values to send for an activation of d values."""
        return self.k if self.k is not None else int(d / (self.ratio or _RATIO))

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return (k,); raise ScenarioError unless 1 <= k <= d and the projection exists."""
        d = int(torch.Size(shape).numel())
        k = self.compute_k(d)
        if not 1 <= k <= d:
            field, got = ("ratio", self.ratio or _RATIO) if self.k is None else ("k", self.k)
            raise ScenarioError(
                f"{where}.{field}", f"must be at most the cut's {d} values, got {got:.15g}"
            )
        small, large = factorise(d)
        if self.projection == "hadamard" and large > LARGEST_FACTOR:
            raise ScenarioError(
                f"{where}.projection",
                f"hadamard needs a cut whose size is a product of two numbers of at most "
                f"{LARGEST_FACTOR}, got {d} = {small} x {large}; use gaussian",
            )
        return (k,)

    @property
    def reencodes(self) -> bool:  # type: ignore[override]
        """Whether the client's half is fixed; of features, a learned lift is the client's."""
        return self.lift == "fixed" or "features" not in self.legs

    def is_rowwise(self) -> bool:
        """Return whether the lift does not learn: all clients then have one projection."""
        return self.lift == "fixed"

    def build(self, site: Site) -> Method:
        return LightSplit(self, site, self.compute_sent_shape(site.shape, site.where)[0])


_RATIO = 8


class LightSplit(Method):
    """One side's half; the server draws R, and clients get it from the announcement."""

    def __init__(self, config: LightSplitConfig, site: Site, k: int) -> None:
        self.config = config
        self.shape = site.shape
        self.d, self.k = site.size, k
        self.device = site.device
        self.projection: Projection | None = None
        if not site.sends and config.lift == "learned":
            with isolate(site.seed, "lift"):
                # With biases, as the paper's parameter counts show.
                layers = nn.Linear(k, config.hidden), nn.Linear(config.hidden, self.d)
                norm, relu = BatchNorm1d(config.hidden), nn.ReLU(inplace=True)
                self.module = nn.Sequential(layers[0], norm, relu, layers[1])
        if site.side == "server":
            self.seed = site.seed
            self.projection = self._draw(site.seed)

    def announce(self) -> tuple[Tensor, ...]:
        """Return R, or the 8 bytes of the seed from which it is drawn."""
        if self.config.broadcast == "matrix" and isinstance(self.projection, Dense):
            return (self.projection.matrix,)
        return (torch.tensor(self.seed),)

    def receive_announcement(self, tensors: tuple[Tensor, ...]) -> None:
        (announced,) = tensors
        if self.config.broadcast == "matrix":
            self.projection = Dense(announced.to(self.device))
        else:
            self.projection = self._draw(int(announced))

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Compute z~ = z R (Eq. 2)."""
        return self._get_projection().project(z.flatten(1))

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Lift by Eq. 4 or Eq. 7, to the shape of the next segment's input."""
        lifted: Tensor
        lifted = self._get_projection().lift(z) if self.module is None else self.module(z)
        return lifted.view(len(z), *self.shape)

    def _draw(self, seed: int) -> Projection:
        return draw_projection(self.config.projection, seed, self.d, self.k, self.device)

    def _get_projection(self) -> Projection:
        if self.projection is None:
            raise ProtocolError("lightsplit: the projection was used before it was announced")
        return self.projection
