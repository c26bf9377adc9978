"""LightSplit (arXiv 2605.13265): project the cut to k values, lift them back on the server.

Eq. 2-3: z~ = z R with R^T R = I, drawn once and broadcast. Eq. 4: lift by R^T ("fixed",
LightSplit-F); Eq. 7: lift by an MLP trained with the trunk ("learned", LightSplit-L). Where the
paper is silent: k = floor(d / ratio); a seed may be broadcast in place of R; and the feature
legs, which the paper leaves at full size, may be projected too (`legs`), with the server encoding
and the client lifting.
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from simsplit.errors import ProtocolError, ScenarioError
from simsplit.methods.base import CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.methods.projections import (
    LARGEST_FACTOR,
    Dense,
    Kind,
    Projection,
    factors_of,
    projection,
)
from simsplit.models.layers import BatchNorm1d
from simsplit.seeds import isolated


class LightSplitConfig(CodecConfig):
    """A fixed orthonormal projection of what is sent, lifted back where it arrives."""

    kind: Literal["lightsplit"] = "lightsplit"
    ratio: float | None = Field(default=None, ge=1)
    """Compression: k = floor(d / ratio). Set this or `k`; 8 if neither is set."""
    k: int | None = Field(default=None, ge=1)
    """Values per sample on the wire, instead of `ratio`."""
    lift: Literal["fixed", "learned"] = "fixed"
    """`fixed` lifts by R^T (LightSplit-F), `learned` by an MLP (LightSplit-L)."""
    hidden: int = Field(default=512, ge=1)
    """Width of the learned lift; the paper's: CIFAR-10 512, CIFAR-100 2048, others 128."""
    projection: Kind = "gaussian"
    """How R is drawn; `hadamard` needs no d x k matrix, and is faster for large d."""
    broadcast: Literal["seed", "matrix"] = "seed"
    """Whether clients are sent a seed or the matrix before training; its bytes are counted."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.VALUES})
    ends: ClassVar[frozenset[Trait]] = frozenset({Trait.SHAPE})
    once: ClassVar[bool] = True
    reencodes: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.ratio is not None and self.k is not None:
            raise ValueError("give ratio or k, not both")
        if self.projection == "hadamard" and self.broadcast == "matrix":
            raise ValueError(
                "a hadamard projection has no matrix to broadcast; use broadcast: seed"
            )
        return self

    def size(self, d: int) -> int:
        """k for an activation of d values."""
        return self.k if self.k is not None else int(d / (self.ratio or _RATIO))

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """(k,): a sample is sent as a vector of k values."""
        d = int(torch.Size(shape).numel())
        k = self.size(d)
        if not 1 <= k <= d:
            field, got = ("ratio", self.ratio or _RATIO) if self.k is None else ("k", self.k)
            limit = (_AT_MOST if self.k is not None else _DIVIDES).format(d=d)
            raise ScenarioError(f"{where}.{field}", f"must {limit}, got {got:.15g}")
        small, large = factors_of(d)
        if self.projection == "hadamard" and large > LARGEST_FACTOR:
            raise ScenarioError(
                f"{where}.projection",
                f"hadamard needs a cut that is a product of two numbers of at most "
                f"{LARGEST_FACTOR}; {d} is {small} x {large} at best; use gaussian",
            )
        return (k,)

    def build(self, site: Site) -> Method:
        """The projection where it sends, the lift where it receives."""
        return LightSplit(self, site, self.sent_shape(site.shape, site.where)[0])


_RATIO = 8
_AT_MOST = "be at most the cut's {d} values"
_DIVIDES = "divide into the cut's {d} values at least once"


class LightSplit(Method):
    """One side of the projection; the server draws R, clients learn it from the announcement."""

    def __init__(self, config: LightSplitConfig, site: Site, k: int) -> None:
        self.config = config
        self.shape = site.shape
        self.d, self.k = site.size, k
        self.device = site.device
        self.projection: Projection | None = None
        if not site.sends and config.lift == "learned":
            with isolated(site.seed, "lift"):
                self.module = mlp_lift(k, config.hidden, self.d)
        if site.side == "server":
            self.drawn_from = site.seed
            self.projection = self._draw(site.seed)

    def announce(self) -> tuple[Tensor, ...]:
        """R itself, or the 8 bytes that it can be drawn from."""
        if self.config.broadcast == "matrix" and isinstance(self.projection, Dense):
            return (self.projection.matrix,)
        return (torch.tensor(self.drawn_from),)

    def hear(self, tensors: tuple[Tensor, ...]) -> None:
        """Take the announced R, or draw it from the announced seed."""
        (told,) = tensors
        matrix = self.config.broadcast == "matrix"
        self.projection = Dense(told.to(self.device)) if matrix else self._draw(int(told))

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Eq. 2: z~ = z R."""
        return self._known().down(z.flatten(1))

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Eq. 4 or Eq. 7, in the shape that the next segment takes."""
        lifted: Tensor = self._known().up(z) if self.module is None else self.module(z)
        return lifted.view(len(z), *self.shape)

    def _draw(self, seed: int) -> Projection:
        return projection(self.config.projection, seed, self.d, self.k, self.device)

    def _known(self) -> Projection:
        if self.projection is None:
            raise ProtocolError("lightsplit: the projection was used before it was announced")
        return self.projection


def mlp_lift(k: int, hidden: int, d: int) -> nn.Module:
    """Eq. 7: Linear, BatchNorm, ReLU, Linear; with biases, as the paper's parameter counts show."""
    return nn.Sequential(
        nn.Linear(k, hidden), BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d)
    )
