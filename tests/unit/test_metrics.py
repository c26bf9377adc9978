"""Figures against hand counts, on predictions that skew hides something in."""

import math

import pytest
import torch
from torch import Tensor

from simsplit.metrics.classification import METRICS, score

# six of class 0, of which five are recovered; two of class 1, one; one of class 3, none
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 3])
GUESSES = torch.tensor([0, 0, 0, 0, 0, 1, 1, 0, 2])


def outputs(guesses: Tensor = GUESSES, classes: int = 4) -> Tensor:
    return torch.nn.functional.one_hot(guesses, classes).float()


def test_accuracy_counts_samples_and_balanced_accuracy_classes() -> None:
    figures = score(outputs(), LABELS, ["accuracy", "balanced_accuracy"])
    assert figures["accuracy"] == pytest.approx(6 / 9)
    assert figures["balanced_accuracy"] == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)


def test_macro_f1() -> None:
    f1_0 = 2 * 5 / (2 * 5 + 1 + 1)  # one of class 1 taken for it, one of its own missed
    f1_1 = 2 * 1 / (2 * 1 + 1 + 1)
    assert METRICS["macro_f1"](outputs(), LABELS) == pytest.approx((f1_0 + f1_1 + 0 + 0) / 4)


def test_top5_is_among_five_of_seven() -> None:
    ranked = torch.arange(7).float().flip(0).expand(3, 7)  # class 0 first, class 6 last
    assert METRICS["top5"](ranked, torch.tensor([0, 4, 5])) == pytest.approx(2 / 3)
    assert METRICS["top5"](outputs(), LABELS) == 1  # of four classes all are among five


def test_loss_is_the_mean_cross_entropy() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert METRICS["loss"](logits, torch.tensor([1, 0])) == pytest.approx(expected)


def test_only_what_is_asked_for_in_its_order() -> None:
    assert list(score(outputs(), LABELS, ["loss", "accuracy"])) == ["loss", "accuracy"]
    assert set(score(outputs(), LABELS, list(METRICS))) == set(METRICS)
