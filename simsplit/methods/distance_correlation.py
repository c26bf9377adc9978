"""Distance correlation of features and labels (Sun et al., 2022; as P3EFT has it).

    L = CE + alpha log( mean(A B) / sqrt( mean(A^2) mean(B^2) ) )

A and B are the batch's matrices of distances between rows, of the features h and of the labels,
doubly centred; the logarithm is natural. As in P3EFT's published code, but for three things. Labels
are one-hot, where the code has their numbers: the same for two classes, and with more of them no
class is nearer to another. Where a batch says nothing (a single row, a single class) there is no
term, where the code has NaN. And where features come of several adapter sets, the terms of all sets
are summed. h is what reaches this method's place in the list: what methods listed after it make of
the features. Padding of texts is left out.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from simsplit.data.batches import Batch
from simsplit.methods.base import LabelDefenceConfig, Method, Site, Step, Trait
from simsplit.methods.classes import classes_of
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg


class DistanceCorrelationConfig(LabelDefenceConfig):
    """Penalises the distance correlation between features and labels."""

    kind: Literal["distance_correlation"] = "distance_correlation"
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the term; published runs use 0.3 to 10."""
    takes: ClassVar[frozenset[Trait]] = frozenset({Trait.SAMPLES})
    reported: ClassVar[tuple[str, ...]] = ("dcor", "dcor_left_out")
    requires: ClassVar[Needs] = (
        needs_leg(Leg.FEATURES_GRAD),
        Need(Given.SCORING),
        Need(Given.CLASSIFIES),
    )

    def build(self, site: Site) -> Method:
        """The loss term on the client; nothing on the server."""
        if site.side == "server":
            return Method()
        return DistanceCorrelation(self.alpha, adapters=site.adapters)


class DistanceCorrelation(Method):
    """Keeps a batch's features for the loss.

    Of a round, `dcor` is the mean distance correlation, `dcor_left_out` the share of batches
    without one.
    """

    def __init__(self, alpha: float, *, adapters: bool = False) -> None:
        self.alpha, self.adapters = alpha, adapters

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Keep which positions are no padding."""
        if step.training and self.alpha > 0:
            step.memo[self] = [real_positions(batch)]
        return batch

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Return u unchanged; keep it for the loss."""
        if self in step.memo:
            step.memo[self].append(u)
        return u

    def tail_loss(self, step: Step) -> Tensor | None:
        """The logarithms of the correlations, times alpha."""
        if self not in step.memo or step.labels is None:
            return None
        real, features = step.memo.pop(self)
        classes = classes_of(step.labels)
        silent = len(features) < 2 or bool((classes == classes[0]).all())
        step.told["dcor_left_out"] = float(silent)
        if silent:
            return None
        parts = features.unbind(1) if self.adapters and features.dim() > 2 else (features,)
        kept = (part if self.adapters else without_padding(part, real) for part in parts)
        logs = torch.stack([log_distance_correlation(part, classes) for part in kept])
        step.told["dcor"] = (logs.detach() / 2).exp().mean()
        total: Tensor = self.alpha * logs.sum()
        return total


def log_distance_correlation(features: Tensor, labels: Tensor) -> Tensor:
    """The natural logarithm of two batches' squared distance correlation, which is what the term
    is; 0 at most.
    """
    classes, numbers = labels.unique(return_inverse=True)
    h_BB = centred_distances(features.flatten(1).float())
    y_BB = centred_distances(one_hot(numbers, len(classes)).to(h_BB))
    # of equal rows nothing is left; the least positive number keeps a logarithm there
    both, ours, theirs = (
        (one * other).mean().clamp_min(torch.finfo(h_BB.dtype).tiny).log()
        for one, other in ((h_BB, y_BB), (h_BB, h_BB), (y_BB, y_BB))
    )
    return both - (ours + theirs) / 2


def centred_distances(x_BD: Tensor) -> Tensor:
    """Pairwise distances, minus the means of their row and column, plus that of all."""
    x_BB = torch.cdist(x_BD, x_BD, compute_mode="donot_use_mm_for_euclid_dist")
    return x_BB - x_BB.mean(0, keepdim=True) - x_BB.mean(1, keepdim=True) + x_BB.mean()


def real_positions(batch: Batch) -> Tensor | None:
    """Mask of the tokens that are no padding; None where there are none."""
    if batch.mask is not None:
        return batch.mask.bool()
    return None if batch.lengths is None else batch.real


def without_padding(features: Tensor, real: Tensor | None) -> Tensor:
    """Features of texts with zeros in place of padding's; all others as they are."""
    if real is None or features.dim() < 3 or features.shape[:2] != real.shape:
        return features
    return features * real.view(*real.shape, *[1] * (features.dim() - 2)).to(features)
