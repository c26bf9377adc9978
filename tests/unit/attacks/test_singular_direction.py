"""All messages of private_backprop give a server the gradient; one of them gives it nothing."""

import dataclasses

import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import CPU, build_setting
from sklearn.metrics import roc_auc_score

from simsplit.attacks import ATTACKS
from simsplit.attacks.label_attack import KnownLabels
from simsplit.attacks.views import align_signs, find_smallest_combination, views_of
from simsplit.legs import Leg
from simsplit.methods import METHODS
from simsplit.methods.method import Site, Step
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.seeds import rng_for

BATCH, BATCHES, WIDTH = 64, 4, 64
ALONE = ("mixed", "gaussian")


def plant(classes=2):
    """Return labels, features that tell a little of them, and the gradients of a linear head."""
    rng = rng_for(3, "planted")
    labels = torch.randint(classes, (BATCHES * BATCH,), generator=rng)
    truth = torch.nn.functional.one_hot(labels, classes).float()
    head = torch.randn(classes, WIDTH, generator=rng)
    features = torch.randn(len(labels), WIDTH, generator=rng) + 0.2 * truth @ head
    scores = torch.randn(len(labels), classes, generator=rng)
    away = scores.softmax(1) - truth
    grads = (away @ head + 0.1 * torch.randn(len(labels), WIDTH, generator=rng)) / BATCH
    return labels, features.split(BATCH), (1e-2 * grads).split(BATCH)


def send(features, grads, messages, noise="mixed"):
    """Send each batch's gradient in messages, as the client does."""
    site = Site("client", Leg.FEATURES, (WIDTH,), 0, CPU)
    method = METHODS["private_backprop"](messages=messages, noise=noise).build(site)
    packets = []
    for number, (states, grad) in enumerate(zip(features, grads, strict=True)):
        shares = method.split_gradient(grad, Step(0, 1, number, 5))
        sent = tuple(share.grad for share in shares)
        packets.append(Packet(0, Leg.FEATURES, 1, number, (states,)))
        packets.append(Packet(0, Leg.FEATURES_GRAD, 1, number, sent))
    return packets


def know(servers, noise="mixed"):
    methods = (METHODS["private_backprop"](noise=noise),)
    return dataclasses.replace(build_setting().known, servers=servers, methods=methods)


def read(packets, labels, servers, noise="mixed", kind="singular_direction"):
    """Return an attack's clues by view and figure."""
    attack = ATTACKS[kind]().build(know(servers, noise))
    attack.known_labels = KnownLabels(int(labels.max()) + 1, torch.empty(0), torch.empty(0))
    for _ in attack.work(packets):
        pass
    return {(clue.view, clue.figure): clue.values for clue in attack.clues}


def auc(scores, labels):
    one = roc_auc_score(labels, scores)
    return max(one, 1 - one)


@pytest.mark.parametrize("noise", ALONE)
@pytest.mark.parametrize("messages", [2, 3, 5])
def test_a_server_with_all_messages_has_the_gradient(messages, noise):
    _, features, grads = plant()
    for packet, grad in zip(send(features, grads, messages, noise)[1::2], grads, strict=True):
        got = find_smallest_combination(torch.stack(packet.tensors), mixed=noise == "mixed")
        cosine = torch.cosine_similarity(got.flatten(), grad.flatten(), dim=0).abs()
        assert cosine > 0.99
        assert got.norm() == pytest.approx(float(grad.norm()), rel=0.15)


@pytest.mark.parametrize("noise", ALONE)
@pytest.mark.parametrize("messages", [2, 3, 5])
def test_a_server_with_all_messages_reads_the_labels_of_several_batches(messages, noise):
    labels, features, grads = plant()
    clues = read(send(features, grads, messages, noise), labels, 1, noise)
    assert auc(clues["recovered", "auc"], labels) > 0.95
    right = (clues["recovered", "accuracy"] == labels).float().mean()
    assert max(right, 1 - right) > 0.95


def test_more_than_two_classes_are_clustered():
    labels, features, grads = plant(classes=3)
    groups = read(send(features, grads, 3), labels, servers=1)["recovered", "accuracy"]
    counts = torch.zeros(3, 3).index_put_((labels, groups), torch.ones(len(labels)), True)
    assert counts.max(0).values.sum() > 0.9 * len(labels)


@pytest.mark.parametrize("noise", ALONE)
@pytest.mark.parametrize(("messages", "servers"), [(2, 2), (3, 3), (3, 6), (4, 2)])
def test_a_server_with_a_part_of_the_messages_reads_nothing(messages, servers, noise):
    labels, features, grads = plant()
    clues = read(send(features, grads, messages, noise), labels, servers, noise)
    view = "gradient" if servers >= messages else "recovered"
    assert auc(clues[view, "auc"], labels) < 0.7


def test_of_one_message_the_gradient_itself_is_read():
    labels, features, grads = plant()
    clues = read(send(features, grads, 1), labels, servers=1)
    assert auc(clues["gradient", "auc"], labels) > 0.98


def test_every_attack_reads_what_all_messages_give_away():
    labels, features, grads = plant()
    packets = send(features, grads, 3)
    assert [view.name for view in views_of(know(3), packets)] == [
        "features",
        "gradient",
        "direction",
    ]
    clues = read(packets, labels, servers=1, kind="spectral")
    assert auc(clues["recovered", "auc"], labels) > 0.95
    assert auc(clues["gradient", "auc"], labels) < 0.8


def test_signs_of_batches_are_made_to_agree():
    _, features, grads = plant()
    flipped = [grad * sign for grad, sign in zip(grads, (1, -1, -1, 1), strict=True)]
    signs = align_signs(features, flipped)
    assert signs in ([1, -1, -1, 1], [-1, 1, 1, -1])


def test_under_a_u_shape_a_run_of_private_backprop_has_its_labels_read(tmp_path):
    given = scenario(
        data={"train_samples": 300, "classes": [3, 8]},
        clients={"count": 1},
        model={"kind": "simplecnn", "learns": ["head", "tail"]},
        method=[{"kind": "private_backprop"}],
        attacks=[{"kind": "singular_direction"}, {"kind": "spectral"}],
        targets={"count": 60},
    )
    table = Run.load(run_to_end(given, tmp_path / "run").path).labels
    worst = table.groupby(["attack", "view"])["value"].max()
    # A batch has sixteen gradients along one line, which chance can make noise resemble.
    assert worst["singular_direction", "recovered"] > 0.85
    assert worst["spectral", "recovered"] > worst["spectral", "gradient"] + 0.15
