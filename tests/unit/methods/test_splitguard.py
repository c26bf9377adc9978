"""SplitGuard: its score by hand, and what a fake batch leaves behind."""

import math

import pytest
import torch
from builders import experiment, scenario
from torch import nn

from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import Site, Step
from simsplit.methods.splitguard import WIDTH, Splitguard, SplitguardConfig, compute_score


def test_the_score_by_hand():
    """Fake gradients at a right angle; sizes are given beside the means, not taken from them."""
    means = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.75, 0.75]])
    norms = torch.tensor([5.0, 2.0, 4.0])
    apart = math.acos(0.75 / math.hypot(1.75, 0.75))  # of (0, 1) and (1.75, 0.75)
    x = (apart * 2 - math.pi / 4 * 2) / 4
    expected = (1 / (1 + math.exp(-5 * x))) ** 2
    assert compute_score(means, norms).item() == pytest.approx(expected, rel=1e-5)


def test_what_does_not_mind_fakes_scores_a_quarter_or_less():
    same = torch.tensor([[1.0, 0.0]] * 3)
    assert compute_score(same, torch.ones(3)).item() == pytest.approx(0.25)
    halves = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert compute_score(halves, torch.tensor([1.5, 1.0, 2.0])).item() < 0.01


@pytest.mark.parametrize(("signal", "about"), [(0.3, 0.51), (0.1, 0.56), (0.03, 0.57)])
def test_gradients_that_know_no_labels_do_not_pass_as_honest(signal, about):
    """The norm of a mean falls with what is in it: scores from those would be .91, .99 and 1."""
    rng = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(60):
        mean = torch.nn.functional.normalize(torch.randn(1, 500, generator=rng))
        gradients = mean + torch.randn(200, 500, generator=rng) / 500**0.5 / signal
        groups = gradients.split([20, 90, 90])
        means = torch.stack([group.mean(0) for group in groups])
        norms = torch.stack([group.norm(dim=1).mean() for group in groups])
        scores.append(compute_score(means, norms).item())
    assert sum(scores) / len(scores) == pytest.approx(about, abs=0.08)


@pytest.mark.parametrize("size", [10, 3 * WIDTH])
def test_means_of_gradients_and_of_their_norms_are_kept(size):
    method, head = guard(), nn.Linear(size, 1, bias=False)
    gradients = torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    for index, gradient in enumerate(gradients):
        head.weight.grad = gradient[None]
        step = Step(0, 1, 0, 0)
        step.memo[method] = index % 3
        assert method.accept(head, step) == (index % 3 > 0)
    pairs = gradients.view(2, 3, size)
    torch.testing.assert_close(method.kept.norms / 2, pairs.norm(dim=2).mean(0))
    sums = torch.stack([method._sketch(gradient) for gradient in gradients]).view(2, 3, WIDTH)
    torch.testing.assert_close(method.kept.sums, sums.sum(0))
    expected = compute_score(sums.mean(0), pairs.norm(dim=2).mean(0)).item()
    assert method.report() == {"splitguard": pytest.approx(expected, rel=1e-5)}


def guard(**fields) -> Splitguard:
    site = Site("client", Leg.SMASHED, (4,), 0, torch.device("cpu"))
    return SplitguardConfig(**fields).build(site)


def test_fakes_come_as_often_as_asked_and_every_label_is_wrong():
    method = guard(after=3, probability=0.3)
    labels = torch.arange(10) % 5
    fakes = 0
    for number in range(1000):
        step = Step(0, 1, number, 0)
        batch = method.transform(Batch(torch.zeros(10, 4), labels, labels), step)
        wrong = batch.labels != labels
        assert wrong.all() or not wrong.any()
        assert batch.labels.max() < 5
        fakes += int(wrong.all())
        assert number >= 3 or not wrong.any()
    assert 250 < fakes < 350
    evaluated = Step(0, 1, 5, 0, training=False)
    batch = Batch(torch.zeros(1, 4), labels[:1], labels[:1])
    assert guard(after=0, probability=1).transform(batch, evaluated) is batch


@pytest.mark.parametrize("size", [10, WIDTH, 3 * WIDTH])
def test_gradients_are_kept_as_they_are_or_nearly(size):
    method = guard()
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
    kept = method._sketch(gradient)
    assert kept.norm().item() == pytest.approx(gradient.norm().item(), rel=0.1)
    if size <= WIDTH:
        assert torch.equal(kept[:size], gradient)


def test_nothing_is_learned_from_a_fake_batch(tmp_path):
    every = {"kind": "splitguard", "after": 0, "probability": 1.0}
    given = scenario(method=[every], schedule={"rounds": 1})
    made = experiment(given, tmp_path / "run")
    client = made.parts.pool.clients[0].training.end
    before = {n: t.detach().clone() for n, t in client.head.named_parameters()}
    trunk = next(made.parts.server.end.trunk.parameters()).detach().clone()
    made.run(resume=False)
    assert all(torch.equal(before[n], t) for n, t in client.head.named_parameters())
    assert not torch.equal(trunk, next(made.parts.server.end.trunk.parameters()))


@pytest.mark.parametrize("fields", [{"rounds": 2}, {"rounds": 30, "local_steps": 1}])
def test_a_guard_that_would_never_begin_is_refused(tmp_path, fields):
    """Before, its column stayed empty."""
    late = {"kind": "splitguard", "after": 30}
    with pytest.raises(ScenarioError, match=r"got 30") as refused:
        experiment(scenario(method=[late], schedule=fields), tmp_path / "run")
    assert refused.value.field == "method.0.after"
    assert not (tmp_path / "run").exists()
