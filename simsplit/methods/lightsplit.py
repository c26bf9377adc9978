"""This module implements LightSplit (arXiv 2605.13265): clients send a projection to k values.

z~ = z R with R^T R = I, drawn once and broadcast (Eq. 2-3). The server lifts z~ by R^T ("fixed",
LightSplit-F, Eq. 4) or by an MLP that is trained with the trunk ("learned", LightSplit-L, Eq. 7).
The paper leaves open how k is rounded; here k = floor(d / ratio). Our additions: a seed may be
broadcast instead of R, and features, which the paper sends at full size, may be projected too
(`legs`); then the server encodes and the client lifts.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from simsplit.errors import ProtocolError, ScenarioError
from simsplit.methods.method import CodecConfig, Method, Shape, Site, Step, Trait
from simsplit.methods.projections import (
    LARGEST_FACTOR,
    Dense,
    Kind,
    Projection,
    draw_projection,
    factorise,
)
from simsplit.models.layers import BatchNorm1d
from simsplit.seeds import isolate


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
    reencodes = True

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
                self.module = make_learned_lift(k, config.hidden, self.d)
        if site.side == "server":
            self.seed = site.seed
            self.projection = self._draw(site.seed)

    def announce(self) -> tuple[Tensor, ...]:
        """Return R, or the 8 bytes of the seed from which it is drawn."""
        if self.config.broadcast == "matrix" and isinstance(self.projection, Dense):
            return (self.projection.matrix,)
        return (torch.tensor(self.seed),)

    def receive_announcement(self, tensors: tuple[Tensor, ...]) -> None:
        """Store the announced R, or draw it from the announced seed."""
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


def make_learned_lift(k: int, hidden: int, d: int) -> nn.Module:
    """Make the MLP of Eq. 7; its layers have biases, as the paper's parameter counts show."""
    return nn.Sequential(
        nn.Linear(k, hidden), BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d)
    )
