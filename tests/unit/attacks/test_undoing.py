"""An optimizer undone: from weights before and after torch's own step to the gradient."""

import pytest
import torch

from simsplit.attacks.undoing import Follower
from simsplit.parties.optimizers import OPTIMIZERS
from simsplit.seeds import rng_for

COUNT, STEPS, FACTORS = 400, 6, (1.0, 0.5, 0.25, 1.0, 1.0, 0.7)
CASES = [
    ("sgd", {"lr": 0.05}),
    ("sgd", {"lr": 0.05, "weight_decay": 0.1, "maximize": True}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "dampening": 0.2}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adam", {"lr": 0.002}),
    ("adam", {"lr": 0.002, "weight_decay": 0.001, "maximize": True}),
    ("adamw", {"lr": 0.002, "weight_decay": 0.1}),
    ("adamw", {"lr": 0.002, "amsgrad": True, "betas": (0.8, 0.99)}),
]


def values(*shape, name):
    return torch.randn(shape, generator=rng_for(1, name), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "fields"), CASES, ids=str)
def test_the_gradient_is_in_the_span_of_its_messages(kind, fields):
    """As low-rank adapters are: half of them start at zero, and half have no gradient at first."""
    config = OPTIMIZERS[kind](**fields)
    weights = torch.nn.Parameter(values(COUNT, name="start").float())
    weights.data[: COUNT // 2] = 0
    optimizer, follower = config.build([weights]), Follower(config)
    for number, factor in enumerate(FACTORS):
        made = 1e-3 * values(COUNT, 3, name=f"parts {number}").float()
        if not number:
            made[COUNT // 2 :] = 0
        truth = made @ values(3, name=f"secret {number}").float()
        before, weights.grad = weights.detach().clone(), truth.clone()
        optimizer.param_groups[0]["lr"] = config.lr * factor
        optimizer.step()
        shares = follower.shares(made, before, weights.detach(), factor)
        result = made.double() @ shares
        size = (result @ truth.double() / truth.double().square().sum()).item()
        assert (result / size - truth).norm() / truth.norm() < 1e-5, number
        # of Adam's gradients only last digits show the scale that they have in common
        assert size == pytest.approx(1, abs=1e-6 if kind == "sgd" else 1e-2)
        follower.follow(result, before)


def test_what_is_followed_goes_on_from_its_state():
    config = OPTIMIZERS["adamw"]()
    one, other = Follower(config), Follower(config)
    for number in range(2):
        one.follow(values(5, name=f"{number}"), values(5, name="weights"))
    other.load(one.state())
    given = [values(5, name=name) for name in ("gradient", "weights")]
    assert torch.equal(one.update(*given).size, other.update(*given).size)
