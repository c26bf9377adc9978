"""This module scores predictions of classes, through thin calls into scikit-learn."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

ClassMetric = Callable[[Tensor, Tensor], float]
"""A metric of outputs (a row of logits per sample) and labels, both on the CPU."""


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose largest output is their label."""
    return (outputs.argmax(-1) == labels).double().mean().item()


def compute_balanced_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean recall over classes, which accuracy hides when classes are unbalanced."""
    from sklearn.metrics import recall_score

    predicted = outputs.argmax(-1)
    classes = labels.unique().tolist()
    return float(
        recall_score(labels, predicted, labels=classes, average="macro", zero_division=0.0)
    )


def macro_f1(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean F1 over classes."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, outputs.argmax(-1), average="macro", zero_division=0.0))


def top5(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose label is among the five largest outputs."""
    best = outputs.topk(min(5, outputs.shape[-1])).indices
    return (best == labels[:, None]).any(1).double().mean().item()


def loss(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy of the outputs."""
    return torch.nn.functional.cross_entropy(outputs, labels).item()


METRICS: dict[str, ClassMetric] = {
    "accuracy": accuracy,
    "balanced_accuracy": compute_balanced_accuracy,
    "macro_f1": macro_f1,
    "top5": top5,
    "loss": loss,
}


def score(
    outputs: Tensor,
    labels: Tensor,
    metrics: Sequence[str],
    own: Mapping[str, ClassMetric] | None = None,
) -> dict[str, float]:
    """Compute the named metrics of some predictions; `own` are the metrics that plugins add."""
    known = {**METRICS, **(own or {})}
    return {name: float(known[name](outputs, labels)) for name in metrics}
