"""The class of each sample; a text's label is at the token from which the class is predicted."""

import torch
from torch import Tensor


def get_classes(labels: Tensor) -> Tensor:
    """Return the class of each sample; a negative number means that it has none."""
    # All other tokens of a text have the label -100, so the largest label is the class.
    return labels if labels.ndim == 1 else labels.amax(1)


def replace_classes(labels: Tensor, classes: Tensor) -> Tensor:
    """Put other classes into the labels; a sample without a class keeps none."""
    there = classes if labels.ndim == 1 else classes[:, None].expand_as(labels)
    return torch.where(labels >= 0, there, labels)
