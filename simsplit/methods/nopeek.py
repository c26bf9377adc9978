"""NoPeek (Vepakomma et al., ICDM Workshops 2020): make what is sent depend less on the input.

The client's loss is (1 - alpha) CE + alpha dCor(x, z): the distance correlation of a batch's inputs
and of what is sent for them. Here the term is alpha / (1 - alpha) dCor beside an unscaled CE: the
same but for a factor on the loss, which would act on the server's learning rate as well. The term
is the client's alone, and its gradient never crosses the wire. dCor, as the published code has it:
distances doubly centred, floors of 1e-10.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.methods.base import Method, MethodConfig, Site, Step, Trait

_FLOOR = 1e-10


class NopeekConfig(MethodConfig):
    """Penalises the distance correlation between inputs and smashed data."""

    kind: Literal["nopeek"] = "nopeek"
    alpha: float = Field(default=0.5, ge=0, lt=1)
    """Weight of the distance correlation in the client's loss; published runs use 0.1 to 0.8."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})

    def build(self, site: Site) -> Method:
        """The loss term on the client; nothing on the server."""
        return Nopeek(self.alpha)


class Nopeek(Method):
    """Keeps a batch's inputs and smashed data for the loss."""

    def __init__(self, alpha: float) -> None:
        self.weight = alpha / (1 - alpha)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Keep the inputs for the loss."""
        if step.training and self.weight > 0:
            step.memo[self] = [batch.inputs]
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged; keep it for the loss."""
        if self in step.memo:
            step.memo[self].append(z)
        return z

    def loss(self, step: Step) -> Tensor | None:
        """Distance correlation of inputs and smashed data, times its weight."""
        if self not in step.memo:
            return None
        inputs, sent = step.memo.pop(self)
        return self.weight * distance_correlation(inputs, sent)


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Distance correlation of two batches, row by row; between 0 and 1."""
    x_BB, z_BB = (_centred(part.flatten(1).float()) for part in (x, z))
    covariance, x_var, z_var = (
        (one * other).mean().clamp_min(_FLOOR).sqrt()
        for one, other in ((x_BB, z_BB), (x_BB, x_BB), (z_BB, z_BB))
    )
    return covariance / (x_var * z_var).clamp_min(_FLOOR).sqrt()


def _centred(x_BD: Tensor) -> Tensor:
    """Pairwise distances minus the means of their row and column."""
    square_B = x_BD.square().sum(1)
    square_BB = square_B[:, None] + square_B[None, :] - 2 * x_BD @ x_BD.T
    same = torch.eye(len(x_BD), dtype=torch.bool, device=x_BD.device)
    distance_BB = square_BB.masked_fill(same, 0).clamp_min(_FLOOR).sqrt()
    return (
        distance_BB - distance_BB.mean(0) - distance_BB.mean(1, keepdim=True) + distance_BB.mean()
    )
