"""The noise against a general minimiser, and what is added to gradients."""

import math

import numpy as np
import pytest
import torch
from builders import scenario
from scipy.optimize import minimize

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.marvell import NoiseVariances, Problem, find_noise, minimise_divergence
from simsplit.methods.method import Method, Site, Step
from simsplit.seeds import rng_for

PROBLEMS = [
    Problem(u=0.1, v=0.5, d=8, g=2.0, p=0.3),
    Problem(u=0.5, v=0.1, d=8, g=2.0, p=0.3),
    Problem(u=0.2, v=0.2, d=64, g=5.0, p=0.5),
    Problem(u=1e-6, v=3e-6, d=128, g=5e-4, p=0.25),
    Problem(u=0.0, v=0.4, d=4, g=1.0, p=0.6),
    Problem(u=0.3, v=0.9, d=1, g=1.0, p=0.6),
]


def divergence(problem: Problem, noise) -> float:
    """Compute the sum of both Kullback-Leibler divergences of two diagonal Gaussians."""
    lam10, lam20, lam11, lam21 = noise
    zeros = np.array([lam10 + problem.u, *[lam20 + problem.u] * (int(problem.d) - 1)])
    ones = np.array([lam11 + problem.v, *[lam21 + problem.v] * (int(problem.d) - 1)])
    apart = np.zeros(int(problem.d))
    apart[0] = problem.g

    def one_way(of, to):
        return 0.5 * (of / to + apart / to - 1 + np.log(to / of)).sum()

    return one_way(zeros, ones) + one_way(ones, zeros)


def power(problem: Problem, noise) -> float:
    lam10, lam20, lam11, lam21 = noise
    positive = lam11 + (problem.d - 1) * lam21
    return problem.p * positive + (1 - problem.p) * (lam10 + (problem.d - 1) * lam20)


def search_least(problem: Problem, total: float) -> float:
    """Search the least sum by a general minimiser, from many starts, over shares of the power."""
    rng = np.random.default_rng(0)
    p, d = problem.p, problem.d
    across = max(d - 1, 1)  # of one value there is nothing across
    most = [total / (1 - p), total / (1 - p) / across, total / p, total / p / across]

    def of(shares):
        noise = [share * limit for share, limit in zip(shares, most, strict=True)]
        return divergence(problem, noise if d > 1 else [noise[0], 0, noise[2], 0])

    within = [
        {"type": "eq", "fun": lambda s: s.sum() - 1},
        {"type": "ineq", "fun": lambda s: s[0] * most[0] / most[1] - s[1]},
        {"type": "ineq", "fun": lambda s: s[2] * most[2] / most[3] - s[3]},
    ]
    results = [
        minimize(of, rng.dirichlet(np.ones(4)), bounds=[(1e-9, 1)] * 4, constraints=within)
        for _ in range(6)
    ]
    return min(float(each.fun) for each in results if each.success)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
def test_the_noise_has_the_least_divergence_of_its_power(problem, scale):
    noise = minimise_divergence(problem, scale * problem.g)
    assert power(problem, noise[:4]) == pytest.approx(scale * problem.g, rel=1e-9)
    assert noise.lam10 >= noise.lam20 >= 0
    assert noise.lam11 >= noise.lam21 >= 0
    assert noise.sum_kl == pytest.approx(divergence(problem, noise[:4]), rel=1e-6, abs=1e-9)
    assert noise.sum_kl <= search_least(problem, scale * problem.g) * (1 + 1e-5) + 1e-9


def test_exchanging_the_classes_exchanges_the_noise():
    one, other = (
        minimise_divergence(PROBLEMS[0], 3.0),
        minimise_divergence(PROBLEMS[0].swapped, 3.0),
    )
    assert one == pytest.approx(other.swapped)


def test_points_without_spread_get_the_closed_form():
    """Of one class only noise along the difference matters; equal shares get equal noise."""
    noise = minimise_divergence(Problem(0.0, 0.0, 16, 2.0, 0.5), 3.0)
    assert noise == pytest.approx(NoiseVariances(3.0, 0.0, 3.0, 0.0, 5 / 3 - 1, 3.0))


def test_power_grows_by_half_until_the_divergence_is_low_enough():
    noise = find_noise(PROBLEMS[0], 1.0, 0.25)
    steps = math.log(noise.power / PROBLEMS[0].g) / math.log(1.5)
    assert steps == pytest.approx(round(steps), abs=1e-9)
    assert noise.sum_kl <= 0.25 < minimise_divergence(PROBLEMS[0], noise.power / 1.5).sum_kl
    assert find_noise(PROBLEMS[0], 1.0, None).power == PROBLEMS[0].g


def build(kind: str, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (6,), 0, torch.device("cpu"))
    return METHODS[kind](**fields).build(site)


def gradients(rows: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(rows) % 2
    grad = 0.1 * torch.randn(rows, *shape, generator=rng_for(0, "g"))
    grad.flatten(1)[:, 0] += labels
    return grad, labels


def send_share(method: Method, grad: torch.Tensor, labels: torch.Tensor, number: int = 0):
    step = Step(0, 1, number, 5, labels=labels)
    (share,) = method.split_gradient(grad, step)
    assert share.weight == 1
    assert share.grad.shape == grad.shape
    return share.grad, step


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_the_noise_that_is_added_has_the_solved_variances(shape):
    grad, labels = gradients(20_000, *shape)
    got, step = send_share(build("marvell", sum_kl=0.1), grad, labels)
    rows, noise = grad.flatten(1).double(), (got - grad).flatten(1).double()
    ones, zeros = rows[labels == 1], rows[labels == 0]
    delta = ones.mean(0) - zeros.mean(0)
    u, v = (part.var(0, correction=0).mean().item() for part in (zeros, ones))
    problem = Problem(u, v, rows.shape[1], delta.square().sum().item(), 0.5)
    best = find_noise(problem, 1.0, 0.1)
    assert step.figures == {
        "marvell_left_out": 0.0,
        "sum_kl": best.sum_kl,
        "noise_power": best.power,
    }
    for label, along, across in ((0, best.lam10, best.lam20), (1, best.lam11, best.lam21)):
        part = noise[labels == label]
        far = part @ (delta / delta.norm())
        assert far.var().item() == pytest.approx(along, rel=0.05)
        rest = (part.square().sum() - far.square().sum()).item() / len(part)
        assert rest == pytest.approx(across * (rows.shape[1] - 1), rel=0.05, abs=1e-12)


def test_two_classes_are_hard_to_tell_apart_afterwards():
    grad, labels = gradients(4000, 6)
    got, _ = send_share(build("marvell", sum_kl=0.04), grad, labels)
    errors = []
    for limit in np.linspace(-5, 5, 101):
        above = got[:, 0] > limit
        wrong = (above & (labels == 0)).sum() + (~above & (labels == 1)).sum()
        errors.append(wrong.item() / len(labels))
    assert min(errors) > 0.5 - math.sqrt(0.04) / 4 - 0.02


def test_a_batch_without_two_means_is_sent_unchanged():
    grad, labels = gradients(6, 4)
    for given, of in ((grad, torch.ones_like(labels)), (grad[:1], labels[:1]), (0 * grad, labels)):
        got, step = send_share(build("marvell"), given, of)
        assert torch.equal(got, given)
        assert step.figures == {"marvell_left_out": 1.0}


def test_each_step_draws_anew_and_the_same_twice():
    grad, labels = gradients(6, 4)
    for kind in ("marvell", "max_norm"):
        first, again, later = (
            send_share(build(kind), grad, labels, number)[0] for number in (0, 0, 1)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, later)


def test_max_norm_scales_rows_to_the_longest_in_the_mean_square():
    grad = torch.tensor([[3.0, 4.0], [0.3, -0.4], [0.0, 0.0]])
    got = torch.stack(
        [send_share(build("max_norm"), grad, torch.tensor([0, 1, 0]), n)[0] for n in range(4000)]
    )
    assert torch.equal(got[:, 0], grad[0].expand(4000, 2))
    assert not got[:, 2].any()
    ratios = got[:, 1] / grad[1]
    torch.testing.assert_close(ratios[:, 0], ratios[:, 1])
    assert ratios.mean().item() == pytest.approx(1, abs=0.5)
    assert got[:, 1].square().sum(1).mean().sqrt().item() == pytest.approx(5, rel=0.05)


def test_what_they_cannot_do_is_refused_by_path():
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: marvell.*two classes.*10"):
        scenario(method=["marvell"])
    for kind in ("marvell", "max_norm"):
        with pytest.raises(ScenarioError, match=rf"method\.0\.kind: {kind}.*gradients"):
            scenario(method=[kind], topology="vanilla")
    scenario(method=["max_norm"])
