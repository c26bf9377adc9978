"""The term by plain loops over distances, and where there is none."""

import math

import numpy as np
import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.distance_correlation import compute_log_distance_correlation
from simsplit.methods.method import Method, Site, Step
from simsplit.seeds import rng_for


def build(*, adapters: bool = False, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (6,), 0, torch.device("cpu"), adapters=adapters)
    return METHODS["distance_correlation"](**fields).build(site)


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=rng_for(seed, "values"))


def centre(rows: np.ndarray) -> np.ndarray:
    far = np.array([[math.dist(one, other) for other in rows] for one in rows])
    return far - far.mean(0)[None, :] - far.mean(1)[:, None] + far.mean()


def by_hand(features: torch.Tensor, labels: list[int]) -> float:
    a = centre(features.flatten(1).double().numpy())
    b = centre(np.eye(max(labels) + 1)[labels])
    return math.log((a * b).mean() / math.sqrt((a * a).mean() * (b * b).mean()))


def term(method: Method, u: torch.Tensor, labels: list[int], **fields) -> tuple:
    y = torch.tensor(labels)
    step = Step(0, 1, 0, 5, labels=y)
    method.transform(Batch(torch.zeros(len(y), 4), y, torch.arange(len(y)), **fields), step)
    assert method.decode(u, step) is u
    return method.compute_tail_loss(step), step


@pytest.mark.parametrize("shape", [(8, 6), (8, 2, 3), (8, 2, 2, 2)])
@pytest.mark.parametrize("labels", [[0, 1] * 4, [0, 1, 2, 2, 1, 0, 0, 1]])
def test_the_term_is_the_published_one_whatever_the_features_shape(shape, labels):
    u = values(*shape)
    got, step = term(build(alpha=0.5), u, labels)
    assert got.item() == pytest.approx(0.5 * by_hand(u, labels), rel=1e-5)
    assert step.figures["dcor_left_out"] == 0
    assert step.figures["dcor"].item() == pytest.approx(math.exp(by_hand(u, labels) / 2), rel=1e-5)


def test_classes_are_alike_far_from_each_other():
    """As numbers, class 2 would be twice as far from class 0 as from class 1."""
    labels = [0, 1, 2, 0, 1, 2]
    u = torch.eye(3)[labels]
    got, _ = term(build(), u, labels)
    assert got.item() == pytest.approx(0, abs=1e-6)


def test_a_step_down_the_term_makes_features_tell_less():
    u, labels = values(16, 5).requires_grad_(), torch.arange(16) % 2
    u.data[:, 0] += 2.0 * labels
    before = compute_log_distance_correlation(u, labels)
    before.backward()
    assert u.grad.isfinite().all()
    assert compute_log_distance_correlation(u.detach() - 0.5 * u.grad, labels) < before


@pytest.mark.parametrize("labels", [[1], [1, 1, 1]], ids=["one row", "one class"])
def test_where_a_batch_says_nothing_there_is_no_term(labels):
    got, step = term(build(), values(len(labels), 6), labels)
    assert got is None
    assert step.figures == {"dcor_left_out": 1.0}


def test_equal_rows_and_tiny_ones_do_no_harm():
    for u in (torch.ones(4, 6), 1e-12 * values(4, 6)):
        u.requires_grad_()
        got, _ = term(build(), u, [0, 1, 0, 1])
        got.backward()
        assert got.isfinite()
        assert u.grad.isfinite().all()
    small, _ = term(build(), 1e-12 * values(4, 6), [0, 1, 0, 1])
    assert small.item() == pytest.approx(by_hand(values(4, 6), [0, 1, 0, 1]), rel=1e-4)


def test_each_adapter_set_has_a_term():
    u, labels = values(8, 3, 6), [0, 1] * 4
    got, _ = term(build(adapters=True), u, labels)
    assert got.item() == pytest.approx(sum(by_hand(u[:, i], labels) for i in range(3)), rel=1e-5)
    mixed, _ = term(build(adapters=True), u[:, 0], labels)
    assert mixed.item() == pytest.approx(by_hand(u[:, 0], labels), rel=1e-5)


def test_padding_is_left_out():
    u, labels = values(4, 4, 6), [0, 1, 1, 0]
    lengths = torch.tensor([4, 2, 3, 1])
    got, _ = term(build(), u, labels, lengths=lengths)
    for row, length in enumerate(lengths):
        u[row, length:] = 0
    assert got.item() == pytest.approx(by_hand(u, labels), rel=1e-5)


def test_nothing_is_kept_in_evaluation():
    step = Step(0, 1, 0, 5, training=False)
    method, y = build(), torch.tensor([0, 1])
    method.transform(Batch(values(2, 6), y, y), step)
    method.decode(values(2, 6), step)
    assert not step.memo
    assert method.compute_tail_loss(step) is None
