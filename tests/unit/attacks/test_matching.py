"""Gradient matching by a tail: the true labels match exactly, others do not; orders are orders."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from simsplit.attacks.gradient_view import GradientView
from simsplit.attacks.lamp import _KINDS, Lamp, LampConfig, draw_permutations
from simsplit.attacks.tag import GradientMatching, shift_to_tokens
from simsplit.data.samples import IGNORED
from simsplit.methods.mixguard import MixguardConfig
from simsplit.models.language import CausalLM
from simsplit.models.transformer import use_eager_attention


class Known:
    """What matching asks of the server's knowledge."""

    seed = 0

    def __init__(self, *methods):
        self.methods = methods


def cross_texts(scale):
    """Return a tail, the view of two texts with half a text learned, and their labels."""
    model = CausalLM(sizes={"width": 16, "layers": 3, "family": "qwen3"}, head=1, tail=1)
    tail = use_eager_attention(model.segment("tail", (6,), 1, seed=0)).eval()
    features = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels = torch.tensor([[5, 9, 7, 100, 3, IGNORED], [IGNORED, IGNORED, IGNORED, 4, 6, IGNORED]])
    logits = tail(features)
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(loss, features)
    view = GradientView(features.detach(), scale * grad)
    soft = one_hot(labels.clamp(min=0), logits.shape[-1]).float()
    unlearned = (labels == IGNORED)[..., None]
    return tail, view, torch.where(unlearned, logits.detach().softmax(-1), soft)


def match(scale=1.0, *methods):
    tail, view, true = cross_texts(scale)
    return GradientMatching(tail, Known(*methods), view, ()), true


def test_true_labels_match_the_raw_gradient_and_others_do_not():
    matching, true = match()
    wrong = matching.losses(true.roll(1, dims=1))
    assert (matching.losses(true) < 1e-3 * wrong).all()


def test_a_mixed_gradient_of_any_size_and_sign_is_scaled_to_that_of_the_mean_loss():
    plain, true = match()
    mixed, _ = match(-40.0, MixguardConfig())
    off = (plain.wanted_RLD - mixed.wanted_RLD).norm() / plain.wanted_RLD.norm()
    assert off < 0.3
    assert (mixed.losses(true) < 0.5 * mixed.losses(true.roll(1, dims=1))).all()


def test_the_gradient_at_the_labels_is_that_of_the_published_loss():
    """Of autograd through softmax, tail and gradient, as the published code has it."""
    matching, true = match()
    tail, view, _ = cross_texts(1.0)
    labels = torch.randn(true.shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    features = view.features.clone().requires_grad_()
    learned = torch.ones(true.shape[:2])
    learned[1, :3] = 0
    learned[:, -1] = 0
    losses = -(tail(features).log_softmax(-1) * labels.softmax(-1)).sum(-1)
    mean = (losses * learned).sum() / learned.sum()
    (made,) = torch.autograd.grad(mean, features, create_graph=True)
    off = made - view.gradient
    (slow,) = torch.autograd.grad(0.85 * off.square().sum() + 0.15 * off.abs().sum(), labels)
    with torch.no_grad():
        fast = matching.differentiate(labels)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("methods", [(), (MixguardConfig(),)])
def test_published_steps_find_the_labels(methods):
    matching, true = match(-40.0 if methods else 1.0, *methods)
    start = torch.randn(true.shape, generator=torch.Generator().manual_seed(2)).softmax(-1)
    labels = matching.descend(start, 40, 0.09)
    right = (labels.argmax(-1) == true.argmax(-1))[:, :-1]
    assert torch.cat([right[0], right[1, 3:]]).all()


def count_right(steps, raw):
    """Return the share of labels found among 4,096 tokens, at the raw size or at size one."""
    rng = torch.Generator().manual_seed(5)
    model = CausalLM(sizes={"width": 64, "layers": 3}, head=1, tail=1)
    tail = use_eager_attention(model.segment("tail", (20,), 1, seed=0)).eval()
    tail.reader = torch.nn.Linear(64, 4096, bias=False).requires_grad_(requires_grad=False)
    tail.reader.weight.copy_(torch.randn(4096, 64, generator=rng) / 8)
    features = torch.randn(1, 20, 64, generator=rng, requires_grad=True)
    true = torch.randint(4096, (1, 19), generator=rng)
    (grad,) = torch.autograd.grad(cross_entropy(tail(features)[0, :-1], true[0]), features)
    matching = GradientMatching(tail, Known(), GradientView(features.detach(), grad), ())
    if not raw:
        size = grad.square().mean().sqrt()
        matching.wanted_RLD = matching.wanted_RLD / size
        matching.learned_RL1 = matching.learned_RL1 / size
    start = torch.randn(1, 20, 4096, generator=rng).softmax(-1)
    labels = matching.descend(start, steps, 0.09)
    return float((labels.argmax(-1)[:, :-1] == true).float().mean())


def test_at_the_raw_size_of_the_mean_loss_a_few_steps_are_enough():
    """AdamW's epsilon keeps tokens that matter little from moving as fast as the others."""
    assert count_right(5, raw=True) > 0.9
    assert count_right(5, raw=False) < 0.5
    assert count_right(10, raw=True) >= count_right(10, raw=False)


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
    matching, true = match()
    logits = 20 * true
    logits[0, [1, 3]] = logits[0, [3, 1]]
    wrong = matching.losses(logits.softmax(-1))
    Reordering(permutations=400).between(0, logits, matching)
    assert (matching.losses(logits.softmax(-1)) < wrong)[0]
    assert torch.equal(logits.argmax(-1)[0, :5], true.argmax(-1)[0, :5])
    before = logits.clone()
    Reordering(permutations=50).between(0, logits, matching)
    assert torch.equal(logits[0], before[0])


class Reading:
    """A language model of two tables, and what LAMP's score asks of an attack."""

    def __init__(self, language):
        rng = torch.Generator().manual_seed(3)
        table, reader = torch.randn(5, 4, generator=rng), torch.randn(4, 5, generator=rng)
        self.config = LampConfig(language=language)
        self.head, self.trunk = lambda tokens: table[tokens], torch.tanh
        self.tail = lambda hidden: hidden @ reader

    _score, _surprise = Lamp._score, Lamp._surprise


def test_the_language_models_loss_stands_beside_the_raw_loss_with_its_weight():
    text = torch.tensor([[1, 4, 0, 2], [3, 3, 1, 0]])
    soft = 0.9 * one_hot(text, 5).float() + 0.02
    given = SimpleNamespace(losses=lambda soft: soft.new_tensor([2.0, 5.0]), context=())
    attack = Reading(language=0.2)
    logits = attack.tail(torch.tanh(attack.head(text)))
    likely = logits.log_softmax(-1)[:, :-1].gather(2, text[:, 1:, None])[..., 0]
    wanted = torch.tensor([2.0, 5.0]) - 0.2 * likely.mean(1)
    torch.testing.assert_close(attack._score(soft, given), wanted)
    assert Reading(language=0)._score(soft, given).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(("step", "tried"), [(0, True), (1, False), (29, False), (30, True)])
def test_orders_are_tried_from_the_first_step_on_in_each_thirtieth(step, tried):
    attack = Reordering(permutations=1)
    attack.config, seen = LampConfig(permutations=1), []
    attack._score = lambda soft, matching: seen.append(soft) or soft.new_zeros(len(soft))
    attack.between(step, torch.zeros(1, 6, 5), None)
    assert bool(seen) is tried


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


def test_permutations_spare_a_texts_ends():
    drawn = draw_permutations(50, 8, np.random.default_rng(0))
    assert (np.sort(drawn, axis=1) == np.arange(8)).all()
    assert (drawn[:, 6:] == [6, 7]).all()
