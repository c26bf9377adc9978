"""The perturbation against one backward pass a class, and what it leaves alone."""

import math

import pytest
import torch
from builders import scenario
from torch import nn
from torch.nn.functional import cross_entropy

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.grad_perturb import draw_laplace
from simsplit.methods.method import Site, Step
from simsplit.seeds import rng_for

N, K, D = 5, 3, 8


def build(epsilon: float = 1.0):
    site = Site("client", Leg.SMASHED, (D,), 3, torch.device("cpu"))
    return METHODS["grad_perturb"](epsilon=epsilon).build(site)


def make_parts():
    rng = rng_for(1, "parts")
    tail = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, K)).double()
    for weight in tail.parameters():
        weight.data = torch.randn(weight.shape, generator=rng, dtype=torch.float64)
    features = torch.randn(N, D, generator=rng, dtype=torch.float64)
    return tail, features, torch.tensor([0, 2, 1, 1, 2])


def run(method, tail, features, labels):
    """Return the gradient that is sent, those of the tail, and the step."""
    step = Step(0, 1, 0, 7, labels=labels)
    u = features.clone().requires_grad_()
    step.outputs = tail(method.decode(u, step))
    term = method.compute_tail_loss(step)
    tail.zero_grad()
    (cross_entropy(step.outputs, labels) + term).backward()
    return u.grad, [weight.grad.clone() for weight in tail.parameters()], term, step


@pytest.mark.parametrize("epsilon", [0.1, 4.0])
def test_each_class_adds_its_gradient_times_a_number(epsilon):
    tail, features, labels = make_parts()
    got, of_tail, term, step = run(build(epsilon), tail, features, labels)
    draws = draw_laplace((N, K), 2 / epsilon, step.make_rng("grad_perturb"))
    u = features.clone().requires_grad_()
    plain = torch.autograd.grad(cross_entropy(tail(u), labels), [u, *tail.parameters()])
    expected = plain[0].clone()
    for c in range(K):
        (of_class,) = torch.autograd.grad(cross_entropy(tail(u), torch.full((N,), c)), u)
        expected += draws[:, c : c + 1] * of_class
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(got, plain[0], rtol=0.01)
    assert all(map(torch.equal, of_tail, plain[1:])), "the tail learns from the true gradient"
    assert term.item() == 0
    assert step.figures == {"perturbed": 1.0}


def test_a_tail_that_sends_nothing_back_is_told():
    tail, features, labels = make_parts()
    step, method = Step(0, 1, 0, 7, labels=labels), build()
    step.outputs = tail(method.decode(features.requires_grad_(), step).detach())
    assert method.compute_tail_loss(step) is None
    assert step.figures == {"perturbed": 0.0}


def test_draws_are_laplacian():
    draws = draw_laplace((400, 500), 4.0, rng_for(0, "many"))
    assert draws.abs().mean().item() == pytest.approx(4, rel=0.01)
    assert draws.mean().item() == pytest.approx(0, abs=0.05)
    beyond = (draws.abs() > 8).double().mean().item()
    assert beyond == pytest.approx(math.exp(-2), rel=0.02)


def test_a_tail_at_the_server_is_refused():
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: grad_perturb"):
        scenario(method=["grad_perturb"], topology="vanilla")


@pytest.mark.parametrize("methods", [["pslf", "grad_perturb"], ["grad_perturb", "pslf"]])
def test_it_is_refused_where_the_tasks_gradient_stays_at_the_client(methods):
    where = rf"method\.{methods.index('grad_perturb')}\.kind: grad_perturb"
    with pytest.raises(ScenarioError, match=where):
        scenario(method=methods, data={"classes": [3, 8]})
