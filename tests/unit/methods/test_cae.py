"""The autoencoder against a plain loop, its closed form of two classes, and runs that learn."""

import math
from types import SimpleNamespace

import pytest
import torch
from builders import run_to_end, scenario
from gists import says
from scipy.optimize import brentq
from torch.nn.functional import cross_entropy, log_softmax, one_hot, softmax

from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.cae import Autoencoder, compute_loss, train_autoencoder
from simsplit.methods.method import Labels, Site, Step
from simsplit.results import Run
from simsplit.scenario.misfits import find_second_losses
from simsplit.seeds import rng_for

TWO = {"data": {"classes": [3, 8]}}


def test_the_loss_is_the_published_one():
    rng = rng_for(0, "loss")
    made = Autoencoder(3, rng).double()
    y = softmax(torch.randn(5, 3, generator=rng, dtype=torch.float64), 1)
    for weight in made.parameters():
        weight.data = torch.randn(weight.shape, generator=rng, dtype=torch.float64)
    d = softmax(made.encoder(y), 1)
    found = softmax(made.decoder(d), 1)
    right = -(y * log_softmax(found, 1)).sum(1).mean()
    alike = -(y * log_softmax(d, 1)).sum(1).mean()
    entropy = (-d * torch.log(d + 1e-6)).mean()
    torch.testing.assert_close(compute_loss(made, y, 0.7), 10 * right - 0.7 * entropy - alike)


@pytest.mark.parametrize(("classes", "strength"), [(2, 1.0), (3, 0.5)])
def test_training_is_a_plain_loop(classes, strength):
    rng = rng_for(5, "cae", classes)
    plain = Autoencoder(classes, rng)
    labels = softmax(torch.log(softmax(torch.rand(30_000, classes, generator=rng), 1)) / 0.025, 1)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.0005)
    for number in range(240):
        start = 128 * (number % math.ceil(30_000 / 128))
        optimizer.zero_grad()
        compute_loss(plain, labels[start : start + 128], strength).backward()
        optimizer.step()
    ours = train_autoencoder(classes, strength, 240, seed=5)
    assert all(map(torch.equal, ours.parameters(), plain.parameters()))


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_two_classes_have_the_soft_labels_of_the_closed_form(strength):
    made = train_autoencoder(2, strength, 2500, seed=0)
    own = brentq(
        lambda q: math.log((1 - q) / q) - 2 / strength * (1 - math.tanh(q - 0.5)), 1e-9, 0.5
    )
    assert made.make_soft_labels().diagonal().tolist() == pytest.approx([own, own], abs=0.02)
    assert made.compute_decoded_share() == 1
    # The published autoencoder of strength 1 gives its own class .0597 and .0568.
    if strength == 1:
        assert own == pytest.approx((0.0597 + 0.0568) / 2, abs=0.003)


def build(**fields):
    site = Site("client", Leg.SMASHED, (4,), 3, torch.device("cpu"), labels=Labels(2))
    return METHODS["cae"](**{"steps": 1200, **fields}).build(site)


def test_the_model_learns_soft_labels_and_predictions_are_decoded():
    method, step = build(), Step(0, 1, 0, 7)
    outputs = torch.randn(6, 2, generator=rng_for(0, "outputs")).requires_grad_()
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    lost = method.compute_task_loss(outputs, labels, cross_entropy, step)
    made = train_autoencoder(2, 1.0, 1200, seed=3)
    targets = softmax(made.encoder(one_hot(labels, 2).float()), 1)
    plain = -(targets * log_softmax(outputs, 1)).sum(1).mean()
    assert torch.equal(lost, plain) or lost.item() == pytest.approx(plain.item(), abs=1e-6)
    perfect = targets.log()
    assert (perfect.argmax(1) != labels).all(), "soft labels of two classes are swapped"
    decoded = method.read_outputs(perfect, step)
    assert torch.equal(decoded.argmax(1), labels)
    torch.testing.assert_close(decoded.exp(), softmax(made.decoder(targets), 1))
    assert method.compute_task_loss(outputs, labels, cross_entropy, evaluating(step)) is None


def evaluating(step):
    return Step(step.client, step.round, step.number, step.seed, training=False)


def test_a_run_predicts_true_classes(tmp_path):
    method = [{"kind": "cae", "steps": 1200}]
    made = scenario(method=method, schedule={"rounds": 6}, **TWO)
    run = Run.load(run_to_end(made, tmp_path / "run").path)
    assert run.rounds["test_accuracy"].iloc[-1] > 0.8
    assert run.clients["cae_confusion"].max() < 0.1
    assert run.clients["cae_decoded"].min() == 1


def test_a_tail_at_the_server_is_refused():
    with pytest.raises(ScenarioError, match=r"method\.0\.kind: cae"):
        scenario(method=["cae"], topology="vanilla")


def test_two_methods_cannot_both_define_the_loss():
    site = Site("client", Leg.SMASHED, (4, 8), 3, torch.device("cpu"))
    configs = [METHODS[kind]() for kind in ("noise", "naive_mix", "cae")]
    made = [config.build(site) for config in configs]
    built = SimpleNamespace(smashed=made, places=range(3))
    (found,) = find_second_losses(SimpleNamespace(method=configs), built, built)
    assert found.field == "method.2.kind"
    assert says(found.reason, "cae ... naive_mix")
    built = SimpleNamespace(smashed=made[:2], places=range(2))
    assert not [*find_second_losses(SimpleNamespace(method=configs), built, built)]
