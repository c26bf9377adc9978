"""Gradient matching by a tail: the true labels match exactly, others do not; orders are orders."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from simsplit.attacks.lamp import _KINDS, Lamp, LampConfig, draw_permutations
from simsplit.attacks.tag import GradientMatching, LabelDescent, match_gradient, shift_to_tokens
from simsplit.attacks.text_attack import SeenBatch
from simsplit.data.samples import IGNORED
from simsplit.methods import Step
from simsplit.methods.mixguard import MixguardConfig
from simsplit.methods.stack import Stack
from simsplit.models.language import CausalLM
from simsplit.models.transformer import use_eager_attention
from simsplit.packets import Leg, Packet


class Known:
    """What matching asks of the server's knowledge."""

    stack = Stack((), (), "server")
    seed = 0

    def __init__(self, *methods):
        self.methods = methods

    def step(self, packet):
        return Step(packet.client, packet.round, packet.step, 0, training=False)


def cross_texts(scale):
    """Return a tail, the packets of two texts with half a text learned, and their labels."""
    model = CausalLM(sizes={"width": 16, "layers": 3, "family": "qwen3"}, head=1, tail=1)
    tail = use_eager_attention(model.segment("tail", (6,), 1, seed=0)).eval()
    features = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels = torch.tensor([[5, 9, 7, 100, 3, 8], [IGNORED, IGNORED, IGNORED, 4, 6, 90]])
    logits = tail(features)
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(loss, features)
    legs = {Leg.SMASHED: features, Leg.FEATURES: features, Leg.FEATURES_GRAD: scale * grad}
    seen = SeenBatch(*(Packet(0, leg, 0, 0, (value.detach(),)) for leg, value in legs.items()))
    soft = one_hot(labels.clamp(min=0), logits.shape[-1]).float()
    unlearned = (labels == IGNORED)[..., None]
    return tail, seen, torch.where(unlearned, logits.detach().softmax(-1), soft)


@pytest.mark.parametrize("scale", [1.0, 37.0])
def test_true_labels_match_whatever_the_scale_and_others_do_not(scale):
    tail, seen, true = cross_texts(scale)
    matching = GradientMatching(tail, Known(), seen)
    assert matching.distances(true).max() < 1e-4
    wrong = true.roll(1, dims=1)
    assert matching.distances(wrong).min() > 0.1


def test_distance_is_differentiable_in_the_labels_alone():
    tail, seen, true = cross_texts(1.0)
    soft = true.roll(1, dims=1).requires_grad_()
    GradientMatching(tail, Known(), seen).distances(soft).sum().backward(inputs=[soft])
    assert soft.grad is not None
    assert soft.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in tail.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e-3, -40.0])
def test_published_steps_find_the_labels_of_a_gradient_of_any_size_and_sign(scale):
    """With levelled gradients on both sides none is recovered at this rate."""
    tail, seen, true = cross_texts(scale)
    known = Known(MixguardConfig()) if scale < 0 else Known()
    start = torch.randn(true.shape, generator=torch.Generator().manual_seed(2)).softmax(-1)
    labels, distances = match_gradient(tail, known, seen, start, LabelDescent(100, 0.09))
    assert (labels.argmax(-1) == true.argmax(-1))[0].all()
    assert (labels.argmax(-1) == true.argmax(-1))[1, 3:].all()
    assert distances.max() < 0.1


class Reordering:
    """What LAMP's step between needs, of a language model that finds all texts alike."""

    known = Known()

    def __init__(self, **fields):
        self.config = LampConfig(every=1, **fields)

    def _surprise(self, soft_RLV, *context):
        return soft_RLV.new_zeros(len(soft_RLV))

    _score, between = Lamp._score, Lamp.between


@pytest.mark.slow
def test_an_order_that_fits_the_gradient_better_is_taken_and_no_other_is():
    tail, seen, true = cross_texts(1.0)
    matching = GradientMatching(tail, Known(), seen)
    logits = 20 * true
    logits[:, [3, 5]] = logits[:, [5, 3]]
    wrong = matching.distances(logits.softmax(-1))
    Reordering(permutations=400).between(0, logits, matching)
    assert (matching.distances(logits.softmax(-1)) < wrong).all()
    assert torch.equal(logits.argmax(-1)[0], true.argmax(-1)[0])
    before = logits.clone()
    Reordering(permutations=50).between(0, logits, matching)
    assert torch.equal(logits[0], before[0])


def test_labels_are_the_text_moved_by_one():
    text = torch.tensor([[1, 5, 9, 7]])
    labels = torch.tensor([[5, 9, 7, IGNORED]])
    assert shift_to_tokens(labels, 1).tolist() == text.tolist()


def test_every_permutation_is_one_and_every_kind_changes_something():
    rng = np.random.default_rng(0)
    for kind in _KINDS:
        drawn = np.stack([kind(7, rng) for _ in range(50)])
        assert (np.sort(drawn, axis=1) == np.arange(7)).all()
        assert (drawn != np.arange(7)).any(axis=1).mean() > 0.5
    assert draw_permutations(3, 1, rng).tolist() == [[0], [0], [0]]
