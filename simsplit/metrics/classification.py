"""This module scores predictions of classes, through thin calls into scikit-learn.

Metrics of next-token predictions are summed batch by batch: all logits would not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from simsplit.metrics.text import perplexity

ClassMetric = Callable[[Tensor, Tensor], float]
"""A metric of outputs (a row of logits per sample) and labels, both on the CPU."""
TokenMetric = Literal["loss", "perplexity", "accuracy", "answers"]


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


@dataclass
class TokenScore:
    """Sums over predicted tokens and over texts whose class is predicted."""

    tokens: int = 0
    loss: float = 0.0
    hits: int = 0
    texts: int = 0
    right: int = 0

    def add(self, logits_NV: Tensor, tokens_N: Tensor) -> None:
        """Add a batch of N predicted tokens."""
        self.tokens += len(tokens_N)
        self.loss += cross_entropy(logits_NV, tokens_N, reduction="sum").item()
        self.hits += int((logits_NV.argmax(-1) == tokens_N).sum())

    def choose(self, logits_BV: Tensor, answers_B: Tensor, choices: Sequence[int]) -> None:
        """Add a batch of texts, each classified by the likeliest of the classes' tokens."""
        allowed = torch.tensor(choices)
        chosen = allowed[logits_BV[:, allowed].argmax(-1)]
        self.texts += len(answers_B)
        self.right += int((chosen == answers_B).sum())

    def compute_figures(self, metrics: Sequence[TokenMetric]) -> dict[str, float]:
        """Return the named metrics over everything added so far."""
        return {name: TOKEN_METRICS[name](self) for name in metrics}


TOKEN_METRICS: dict[TokenMetric, Callable[[TokenScore], float]] = {
    "loss": lambda score: score.loss / max(1, score.tokens),
    "perplexity": lambda score: perplexity(score.loss / max(1, score.tokens)),
    "accuracy": lambda score: score.hits / max(1, score.tokens),
    "answers": lambda score: score.right / max(1, score.texts),
}

OF_TEXTS = {
    "loss": "Mean cross-entropy of tokens.",
    "perplexity": "e to the power of the loss.",
    "accuracy": "Share of tokens that are predicted right.",
    "answers": "Share of texts whose class is predicted right; only if a causal model classifies.",
    "exact_answers": "Share of generated texts with the right final number, as in GSM8K.",
    "rouge_l": "F1 of the longest common subsequence of words, of generated texts.",
    "meteor": "METEOR of generated texts, by exact and stem matches.",
    "bleu": "Corpus BLEU of generated texts, 0 to 100.",
    "code_bleu": "CodeBLEU of generated Python, 0 to 1.",
}
"""Descriptions of the metrics of texts."""
