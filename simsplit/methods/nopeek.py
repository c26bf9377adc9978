"""This module implements NoPeek (Vepakomma et al., ICDM Workshops 2020).

NoPeek makes smashed data depend less on the inputs: the client's loss is
(1 - alpha) CE + alpha dCor(x, z), where dCor is the distance correlation of a batch's inputs and
its smashed data. Here the term is alpha / (1 - alpha) dCor, and CE is not scaled. The losses differ
only by a factor, which would also scale the server's gradients. The term stays at the client: its
gradient never crosses the wire. As in the published code, dCor has doubly centred distances and
floors of 1e-10.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.methods.method import Method, MethodConfig, Site, Step, Trait

_FLOOR = 1e-10


class NopeekConfig(MethodConfig):
    """A penalty on the distance correlation between inputs and smashed data."""

    kind: Literal["nopeek"] = "nopeek"
    alpha: float = Field(default=0.5, ge=0, lt=1)
    """Weight of the distance correlation in the client's loss; the task's loss has weight
    1 - alpha. Published runs use 0.1 to 0.8; 0: no term."""
    required_traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})

    def build(self, site: Site) -> Method:
        return Nopeek(self.alpha)


class Nopeek(Method):
    """The client's loss term; a step's memo holds the batch's inputs and smashed data."""

    def __init__(self, alpha: float) -> None:
        self.weight = alpha / (1 - alpha)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Return the batch unchanged, and store its inputs for the loss."""
        if step.training and self.weight > 0:
            step.memo[self] = [batch.inputs]
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Return z unchanged, and store it for the loss."""
        if self in step.memo:
            step.memo[self].append(z)
        return z

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the distance correlation of inputs and smashed data times its weight."""
        if self not in step.memo:
            return None
        inputs, sent = step.memo.pop(self)
        return self.weight * compute_distance_correlation(inputs, sent)


def compute_distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Return the distance correlation of two batches' rows, between 0 and 1."""
    x_BB, z_BB = (_compute_centred_distances(rows.flatten(1).float()) for rows in (x, z))
    covariance, x_var, z_var = (
        (one * other).mean().clamp_min(_FLOOR).sqrt()
        for one, other in ((x_BB, z_BB), (x_BB, x_BB), (z_BB, z_BB))
    )
    return covariance / (x_var * z_var).clamp_min(_FLOOR).sqrt()


def _compute_centred_distances(x_BD: Tensor) -> Tensor:
    """Return pairwise distances, minus the means of their row and column, plus the total mean."""
    square_B = x_BD.square().sum(1)
    square_BB = square_B[:, None] + square_B[None, :] - 2 * x_BD @ x_BD.T
    same = torch.eye(len(x_BD), dtype=torch.bool, device=x_BD.device)
    distance_BB = square_BB.masked_fill(same, 0).clamp_min(_FLOOR).sqrt()
    return (
        distance_BB - distance_BB.mean(0) - distance_BB.mean(1, keepdim=True) + distance_BB.mean()
    )
