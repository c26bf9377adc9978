"""This module penalises distance correlation: of features and labels, and of inputs (NoPeek).

The first is by Sun et al., 2022:

    L = CE + alpha log( mean(A B) / sqrt( mean(A^2) mean(B^2) ) )

A and B are the doubly centred matrices of distances between the batch's rows, of the features h and
of the labels; the logarithm is natural. This follows P3EFT's published code except for three
points. Labels are one-hot, where the code uses their numbers: for two classes this is the same, and
for more, no class is nearer to another. A batch with one row or one class has no term, where the
code has NaN. If features have an axis of adapter sets, the terms of all sets are summed. h is the
input of this method's `decode`: the features as decoded by the methods listed after it. Padding of
texts is left out.

NoPeek (Vepakomma et al., ICDM Workshops 2020) makes smashed data depend less on the inputs: the
client's loss is (1 - alpha) CE + alpha dCor(x, z), where dCor is the distance correlation of a
batch's inputs and its smashed data. Here the term is alpha / (1 - alpha) dCor, and CE is not
scaled. The losses differ only by a factor, which would also scale the server's gradients. The term
stays at the client: its gradient never crosses the wire. As in the published code, dCor has doubly
centred distances and floors of 1e-10.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from simsplit.data.batches import Batch
from simsplit.data.samples import get_classes
from simsplit.methods.method import LabelDefenceConfig, Method, MethodConfig, Site, Step, Trait

_NOPEEK_FLOOR = 1e-10


class DistanceCorrelationConfig(LabelDefenceConfig):
    """A penalty on the distance correlation between features and labels."""

    kind: Literal["distance_correlation"] = "distance_correlation"
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the loss term. Published runs use 0.3 to 10; 0: no term."""
    required_traits = frozenset({Trait.SAMPLES})
    columns = ("dcor", "dcor_left_out")
    requires = LabelDefenceConfig.by_labels

    def build(self, site: Site) -> Method:
        return DistanceCorrelation(self, site) if site.side == "client" else Method()


class DistanceCorrelation(Method):
    """The client's loss term; a step's memo holds the mask of real tokens and the features.

    In the table of clients, `dcor` is a round's mean distance correlation, and `dcor_left_out` the
    share of batches without one.
    """

    def __init__(self, config: DistanceCorrelationConfig, site: Site) -> None:
        self.alpha, self.adapters = config.alpha, site.adapters

    def transform(self, batch: Batch, step: Step) -> Batch:
        if step.training and self.alpha > 0:
            step.memo[self] = [get_real_mask(batch)]
        return batch

    def decode(self, u: Tensor, step: Step) -> Tensor:
        if self in step.memo:
            step.memo[self].append(u)
        return u

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return alpha times the sum of the logarithms, or None if they are not defined."""
        if self not in step.memo or step.labels is None:
            return None
        real, features = step.memo.pop(self)
        classes = get_classes(step.labels)
        undefined = len(features) < 2 or bool((classes == classes[0]).all())
        step.figures["dcor_left_out"] = float(undefined)
        if undefined:
            return None
        sets = features.unbind(1) if self.adapters and features.dim() > 2 else (features,)
        rows = (each if self.adapters else zero_padding(each, real) for each in sets)
        logs = torch.stack([compute_log_distance_correlation(each, classes) for each in rows])
        # The logarithm is that of the square, so half of it belongs to the correlation.
        step.figures["dcor"] = (logs.detach() / 2).exp().mean()
        total: Tensor = self.alpha * logs.sum()
        return total


def compute_log_distance_correlation(features: Tensor, labels: Tensor) -> Tensor:
    """Return the natural logarithm of the squared distance correlation; at most 0."""
    classes, numbers = labels.unique(return_inverse=True)
    h_BB = compute_centred_distances(features.flatten(1).float())
    y_BB = compute_centred_distances(one_hot(numbers, len(classes)).to(h_BB))
    # Equal rows have centred distances of 0; the smallest positive number keeps the log finite.
    joint, own, other = (
        (left * right).mean().clamp_min(torch.finfo(h_BB.dtype).tiny).log()
        for left, right in ((h_BB, y_BB), (h_BB, h_BB), (y_BB, y_BB))
    )
    return joint - (own + other) / 2


def compute_centred_distances(x_BD: Tensor) -> Tensor:
    """Return pairwise distances, minus the means of their row and column, plus the total mean."""
    # The faster mode by a matrix product loses the digits of small distances.
    return _centre(torch.cdist(x_BD, x_BD, compute_mode="donot_use_mm_for_euclid_dist"))


def _centre(x_BB: Tensor) -> Tensor:
    return x_BB - x_BB.mean(0, keepdim=True) - x_BB.mean(1, keepdim=True) + x_BB.mean()


def get_real_mask(batch: Batch) -> Tensor | None:
    """Return a mask of the batch's real tokens, or None if it has no padding."""
    if batch.mask is not None:
        return batch.mask.bool()
    return None if batch.lengths is None else batch.real


def zero_padding(features: Tensor, real: Tensor | None) -> Tensor:
    """Return features of texts with zeros at padding; return all other features unchanged."""
    if real is None or features.dim() < 3 or features.shape[:2] != real.shape:
        return features
    return features * real.view(*real.shape, *[1] * (features.dim() - 2)).to(features)


class NopeekConfig(MethodConfig):
    """A penalty on the distance correlation between inputs and smashed data."""

    kind: Literal["nopeek"] = "nopeek"
    alpha: float = Field(default=0.5, ge=0, lt=1)
    """Weight of the distance correlation in the client's loss; the task's loss has weight
    1 - alpha. Published runs use 0.1 to 0.8; 0: no term."""
    required_traits = frozenset({Trait.SAMPLES})

    def build(self, site: Site) -> Method:
        return Nopeek(self.alpha)


class Nopeek(Method):
    """The client's loss term; a step's memo holds the batch's inputs and smashed data."""

    def __init__(self, alpha: float) -> None:
        self.weight = alpha / (1 - alpha)

    def transform(self, batch: Batch, step: Step) -> Batch:
        if step.training and self.weight > 0:
            step.memo[self] = [batch.inputs]
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        if self in step.memo:
            step.memo[self].append(z)
        return z

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        if self not in step.memo:
            return None
        inputs, sent = step.memo.pop(self)
        return self.weight * compute_distance_correlation(inputs, sent)


def compute_distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Return the distance correlation of two batches' rows, between 0 and 1."""
    x_BB, z_BB = (_compute_floored_distances(rows.flatten(1).float()) for rows in (x, z))
    covariance, x_var, z_var = (
        (one * other).mean().clamp_min(_NOPEEK_FLOOR).sqrt()
        for one, other in ((x_BB, z_BB), (x_BB, x_BB), (z_BB, z_BB))
    )
    return covariance / (x_var * z_var).clamp_min(_NOPEEK_FLOOR).sqrt()


def _compute_floored_distances(x_BD: Tensor) -> Tensor:
    """Return pairwise distances, minus the means of their row and column, plus the total mean."""
    square_B = x_BD.square().sum(1)
    square_BB = square_B[:, None] + square_B[None, :] - 2 * x_BD @ x_BD.T
    same = torch.eye(len(x_BD), dtype=torch.bool, device=x_BD.device)
    return _centre(square_BB.masked_fill(same, 0).clamp_min(_NOPEEK_FLOOR).sqrt())
