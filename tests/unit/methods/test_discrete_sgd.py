"""Gradients are rounded to multiples of one interval, which the first one sets."""

import pytest
import torch
from builders import scenario

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Site, Step
from simsplit.seeds import rng_for


def build(**fields):
    return METHODS["discrete_sgd"](**fields).build(
        Site("client", Leg.SMASHED, (8,), 3, torch.device("cpu"))
    )


def draw(name: str) -> torch.Tensor:
    return torch.randn(6, 8, generator=rng_for(0, name))


def send(method, grad, *, training=True):
    (share,) = method.split_gradient(grad, Step(0, 1, 0, 7, training=training))
    assert share.weight == 1
    return share.grad


@pytest.mark.parametrize("bins", [1, 2, 6, 12])
def test_all_gradients_are_rounded_by_the_spread_of_the_first(bins):
    method, first, second = build(bins=bins), draw("first"), 3 * draw("second")
    interval = 2 * first.std() / ((bins + 1) // 2)
    for grad in (first, second):
        got = send(method, grad)
        for value, rounded in zip(grad.flatten().tolist(), got.flatten().tolist(), strict=True):
            assert rounded == pytest.approx(round(value / interval.item()) * interval.item())
        assert torch.equal(got, torch.round(grad / interval) * interval)


def test_clipped_values_end_at_two_deviations():
    method, grad = build(bins=6, clip=True), draw("first")
    grad[0, 0] = 40.0
    got = send(method, grad)
    assert got.max().item() == pytest.approx(2 * grad.std().item())
    assert len(got.unique()) <= 7


def test_a_look_before_training_does_not_set_the_interval():
    method, seen = build(), draw("seen")
    expected = 2 * seen.std() / 6
    assert torch.equal(send(method, seen, training=False), (seen / expected).round() * expected)
    assert method.interval.size == 0
    send(method, draw("first"))
    assert method.interval.size == 2 * draw("first").std() / 6


def test_a_resumed_method_goes_on_with_its_interval():
    method, other = build(), build()
    send(method, draw("first"))
    other.module.load_state_dict(method.module.state_dict())
    assert torch.equal(send(method, draw("second")), send(other, draw("second")))


def test_what_has_no_spread_is_left_alone():
    for grad in (torch.zeros(2, 8), torch.ones(1, 1)):
        assert torch.equal(send(build(), grad), grad)


def test_a_cut_without_gradients_of_features_is_refused():
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: discrete_sgd"):
        scenario(method=["discrete_sgd"], topology="vanilla")
