"""One class for each sample; a text has its label at the token that is read."""

import torch
from torch import Tensor


def classes_of(labels: Tensor) -> Tensor:
    """The class of each sample; negative where a sample has none."""
    return labels if labels.ndim == 1 else labels.amax(1)


def relabelled(labels: Tensor, classes: Tensor) -> Tensor:
    """Labels with other classes in the same places; a sample without a class stays without."""
    there = classes if labels.ndim == 1 else classes[:, None].expand_as(labels)
    return torch.where(labels >= 0, there, labels)
