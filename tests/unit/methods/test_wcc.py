"""Within-class compaction against Eq. 10 written as loops."""

import pytest
import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods import Site, Step
from simsplit.methods.wcc import Wcc, WccConfig, compute_within_class_scatter

LABELS = {
    "mixed": [0, 2, 0, 1, 2, 0, 7],
    "single_class": [3] * 7,
    "all_distinct": [6, 5, 4, 3, 2, 1, 0],
}


def eq_10(z: Tensor, labels: Tensor, normalise: bool) -> Tensor:
    """Average over classes the mean squared distance of a class's samples to their mean."""
    total = torch.zeros((), dtype=z.dtype)
    classes = sorted(set(labels.tolist()))
    for each in classes:
        members = [z[row].flatten() for row in range(len(z)) if labels[row] == each]
        mean = sum(members) / len(members)
        total = total + sum(((m - mean) ** 2).sum() for m in members) / len(members)
    return total / (len(classes) * z[0].numel()) if normalise else total


def activations(*shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_()


def wcc(**fields) -> Wcc:
    site = Site("client", Leg.SMASHED, (5, 3), 0, torch.device("cpu"))
    return WccConfig(**fields).build(site)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
def test_value_and_gradient_are_eq_10s(labels, normalise):
    labels = torch.tensor(labels)
    ours, slow = activations(7, 5, 3), activations(7, 5, 3)
    scatter, expected = (
        compute_within_class_scatter(ours, labels, normalise),
        eq_10(slow, labels, normalise),
    )
    scatter.backward()
    expected.backward()
    torch.testing.assert_close(scatter, expected)
    torch.testing.assert_close(ours.grad, slow.grad)


def test_by_hand():
    z = torch.tensor([[0.0, 0.0], [2.0, 4.0], [9.0, 9.0]])
    labels = torch.tensor([1, 1, 0])
    # class 1: mean (1, 2), both at squared distance 5; class 0: alone
    assert compute_within_class_scatter(z, labels).item() == pytest.approx(5)
    assert compute_within_class_scatter(z, labels, normalise=True).item() == pytest.approx(
        5 / (2 * 2)
    )


def test_nothing_scatters_where_every_class_has_one_sample():
    z = activations(7, 5)
    compute_within_class_scatter(z, torch.arange(7)).backward()
    assert z.grad.abs().max() == 0


def test_a_large_common_mean_does_not_drown_the_scatter():
    z, labels = activations(7, 5).detach().float(), torch.tensor(LABELS["mixed"])
    shifted = compute_within_class_scatter(z + 1000, labels)
    torch.testing.assert_close(shifted, compute_within_class_scatter(z, labels), rtol=1e-3, atol=0)


def test_the_term_is_weighted_and_its_activation_let_go():
    method, z = wcc(weight=0.3), activations(7, 5, 3)
    step = Step(0, 0, 0, 0, labels=torch.tensor(LABELS["mixed"]))
    assert method.encode(z, step) is z
    torch.testing.assert_close(method.compute_encode_loss(step), 0.3 * eq_10(z, step.labels, False))
    assert step.memo == {}
    assert method.compute_encode_loss(step) is None


def test_two_terms_of_one_step_do_not_mix():
    first, second = wcc(), wcc(weight=1)
    z, step = activations(7, 5, 3), Step(0, 0, 0, 0, labels=torch.tensor(LABELS["mixed"]))
    first.encode(z, step)
    second.encode(2 * z, step)
    torch.testing.assert_close(second.compute_encode_loss(step), 4 * eq_10(z, step.labels, False))
    torch.testing.assert_close(first.compute_encode_loss(step), 0.01 * eq_10(z, step.labels, False))


@pytest.mark.parametrize("weight", [0, 0.0])
def test_weight_zero_is_no_term_at_all(weight):
    method, step = wcc(weight=weight), Step(0, 0, 0, 0, labels=torch.zeros(7))
    method.encode(activations(7, 5, 3), step)
    assert step.memo == {}
    assert method.compute_encode_loss(step) is None


def test_evaluation_has_no_term():
    method, step = wcc(), Step(0, 0, 0, 0, training=False)
    method.encode(activations(7, 5, 3), step)
    assert step.memo == {}
    assert method.compute_encode_loss(step) is None
