"""Pseudo-labels, and who learns from what."""

import math

import pytest
import torch
from builders import experiment, run_to_end, scenario
from gists import says
from torch.nn.functional import cross_entropy

from simsplit.data.batches import Batch
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Labels, Site, Step
from simsplit.methods.pslf import Pslf, count_positive
from simsplit.results import Run
from simsplit.seeds import rng_for

TWO = {
    "data": {"source": {"kind": "sklearn", "name": "breast_cancer"}, "train_samples": 80},
    "model": {"kind": "mlp", "widths": [16, 16, 16], "head": 1, "tail": 1},
}


def build(shape=(6,), share=0.5, **fields) -> Pslf:
    labels = Labels(2, (1 - share, share))
    cut, cpu = (9,), torch.device("cpu")
    site = Site("client", Leg.SMASHED, cut, 0, cpu, features=shape, labels=labels)
    return METHODS["pslf"](**fields).build(site)


def began(method: Pslf, labels: torch.Tensor, rows=None, number: int = 0, **fields) -> Step:
    step = Step(0, 1, number, 5, labels=labels)
    rows = torch.arange(len(labels)) if rows is None else rows
    method.transform(Batch(torch.zeros(len(labels), 4), labels, rows, **fields), step)
    return step


def pseudo(method: Pslf, labels: torch.Tensor, rows=None, number: int = 0) -> torch.Tensor:
    return began(method, labels, rows, number).memo[method][0]


@pytest.mark.parametrize(
    ("num", "share", "expected"), [(9, 0.56, 5), (4, 0.37, 1), (2, 0.9, 1), (18, 0.01, 1)]
)
def test_pseudo_classes_are_dealt_by_the_share_of_positives(num, share, expected):
    assert count_positive(num, share) == expected


def test_labels_are_flipped_with_the_published_probability_and_sub_classes_are_alike():
    method = build(share=0.56, epsilon=0.3, pseudo_classes=9)
    labels = torch.arange(60_000) % 2
    got = pseudo(method, labels)
    flipped = (got >= 4) != (labels == 1)  # 0 to 3 are the negatives', 4 to 8 the positives'
    expected = 1 / (math.exp(0.3) + 1)
    assert flipped.double().mean().item() == pytest.approx(expected, abs=0.01)
    for first, count in ((0, 4), (4, 5)):
        inside = got[(got >= first) & (got < first + count)] - first
        shares = torch.bincount(inside, minlength=count) / len(inside)
        assert (shares - 1 / count).abs().max() < 0.02


def test_a_sample_keeps_its_pseudo_label():
    method, labels = build(epsilon=0), torch.arange(100) % 2
    first = pseudo(method, labels)
    some = torch.tensor([7, 99, 3])
    assert torch.equal(pseudo(method, labels[some], some, number=8), first[some])
    assert torch.equal(pseudo(build(epsilon=0), labels), first)


@pytest.mark.parametrize("shape", [(6,), (2, 3, 3), (5, 6)])
def test_what_goes_back_is_the_pseudo_classifiers_gradient_alone(shape):
    method, labels = build(shape, pseudo_classes=4), torch.arange(8) % 2
    u = torch.randn(8, *shape, generator=rng_for(0, "u")).requires_grad_()
    step = began(method, labels)
    drawn = step.memo[method][0]
    shown = method.decode(u, step)
    assert torch.equal(shown, u)
    assert not shown.requires_grad
    tail = torch.nn.Linear(shown[0].numel(), 2)
    (cross_entropy(tail(shown.flatten(1)), labels) + method.compute_tail_loss(step)).backward()
    theirs = u.detach().clone().requires_grad_()
    flat = theirs.mean(1) if len(shape) == 2 else theirs.flatten(1)
    cross_entropy(flat @ method.module.weight.T + method.module.bias, drawn).backward()
    torch.testing.assert_close(u.grad, theirs.grad)
    assert tail.weight.grad.norm() > 0
    assert method.module.weight.grad.norm() > 0


def test_padding_has_no_part_in_the_mean():
    method, labels, lengths = build((4, 6)), torch.tensor([0, 1]), torch.tensor([4, 1])
    losses = []
    for beyond in (0.0, 7.0):
        u = torch.ones(2, 4, 6)
        u[1, 1:] = beyond
        step = began(method, labels, lengths=lengths, mask=None)
        step.memo[method][1] = torch.arange(4) < lengths[:, None]
        method.decode(u, step)
        losses.append(method.compute_tail_loss(step).item())
    assert losses[0] == losses[1]


def test_features_that_are_mixed_already_are_taken_as_they_are():
    method, labels = build((3, 6)), torch.tensor([0, 1])
    step = began(method, labels)
    method.decode(torch.ones(2, 6), step)
    assert method.compute_tail_loss(step).isfinite()


def test_evaluation_goes_through_the_tail_as_ever():
    method, u = build(), torch.ones(2, 6).requires_grad_()
    step = Step(0, 1, 0, 5, training=False)
    method.transform(Batch(u, torch.tensor([0, 1]), torch.arange(2)), step)
    assert method.decode(u, step) is u


def test_a_run_learns_and_tells(tmp_path):
    given = scenario(**TWO, method=[{"kind": "pslf", "epsilon": 3.0, "pseudo_classes": 4}])
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    assert run.clients["labels_flipped"].between(0, 0.2).all()
    assert run.clients["pseudo_accuracy"].notna().all()


def test_more_than_two_classes_are_refused_by_path():
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: pslf.*two classes.*10"):
        scenario(method=["pslf"])
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: pslf needs"):
        scenario(**TWO, method=["pslf"], topology="vanilla")


@pytest.mark.parametrize("kind", ["distance_correlation", "p3eft"])
def test_a_loss_of_detached_features_is_refused(kind, tmp_path):
    """Before pslf, its term would get features without a way to the trunk."""
    with pytest.raises(ScenarioError) as caught:
        experiment(scenario(**TWO, method=[{"kind": kind}, {"kind": "pslf"}]), tmp_path / "run")
    assert says(str(caught.value), f"method.0.kind: {kind} ... list {kind} after pslf")
    experiment(scenario(**TWO, method=[{"kind": "pslf"}, {"kind": kind}]), tmp_path / "other")
