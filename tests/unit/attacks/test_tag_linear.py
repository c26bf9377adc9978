"""Labels in closed form: all are read from a known gradient, none from another model's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from simsplit.attacks.gradient_view import combine, weights_from
from simsplit.attacks.tag_linear import LabelTable
from simsplit.attacks.tail_derivative import TailDerivative
from simsplit.data.samples import IGNORED
from simsplit.models.language import CausalLM
from simsplit.models.transformer import get_layers, use_eager_attention

TEXTS, LENGTH, WIDTH = 4, 12, 32
CHANCE = 0.1
"""Far above one in 259, so that a lucky draw fails no test."""


def draw_tail(seed=0, family="llama", spread=3.0):
    """Return a random tail whose layers change the states a lot."""
    sizes = {"width": WIDTH, "layers": 3, "family": family}
    model = CausalLM(sizes=sizes, head=1, tail=1)
    tail = use_eager_attention(model.segment("tail", (LENGTH,), 1, seed=seed)).eval()
    with torch.no_grad():
        for weight in get_layers(tail).parameters():
            if weight.ndim == 2:
                weight.mul_(spread)
        tail.norm.weight.mul_(torch.linspace(0.5, 2, WIDTH))
    return tail.requires_grad_(requires_grad=False)


def draw_gradient(tail):
    """Return features, labels and the gradient of their mean loss; half a text is not learned."""
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(TEXTS, LENGTH, WIDTH, generator=rng).requires_grad_()
    labels = torch.randint(len(tail.reader.weight), (TEXTS, LENGTH), generator=rng)
    labels[0, : LENGTH // 2] = IGNORED
    loss = cross_entropy(tail(features).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    (gradient,) = torch.autograd.grad(loss, features)
    return features.detach(), labels, gradient


def read(tail, features, gradient, iterations=20):
    derivative = TailDerivative(tail, features, ())
    cotangents = derivative.solve(gradient, iterations)
    table = LabelTable(tail)
    pairs = [table.read_row(*row) for row in zip(derivative.states, cotangents, strict=True)]
    tokens = [torch.stack([pair[sign].tokens for pair in pairs]) for sign in (0, 1)]
    sure = [torch.stack([pair[sign].sureness for pair in pairs]) for sign in (0, 1)]
    return tokens, sure


class OneMore(torch.nn.Module):
    """Gemma's norm: by one more than its weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight - 1)

    def forward(self, x):
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * (1 + self.weight)


class Centring(torch.nn.Module):
    """Cohere's norm: a layer norm that is none of torch's."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight)


class Plain(torch.nn.Module):
    """OLMo's norm: without a weight."""

    def __init__(self, weight):
        super().__init__()
        del weight

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize("norm", [OneMore, Centring, Plain])
def test_labels_behind_norms_of_other_kinds_are_all_read(norm):
    tail = draw_tail()
    tail.norm = norm(torch.linspace(0.5, 2, WIDTH)).requires_grad_(requires_grad=False)
    features, labels, gradient = draw_gradient(tail)
    (tokens, _), (sure, _) = read(tail, features, gradient)
    assert share_right(tokens, labels) == 1
    assert float(sure.min()) > 0.99


def share_right(tokens, labels):
    learned = labels != IGNORED
    return float((tokens == labels)[learned].float().mean())


def test_the_maps_are_the_tails_derivative_and_its_transpose():
    tail = draw_tail()
    features, _, gradient = draw_gradient(tail)
    derivative = TailDerivative(tail, features, ())
    one, other = torch.randn(2, *features.shape, generator=torch.Generator().manual_seed(2))
    step = 1e-3 * one
    slow = (tail.blocks(features + step) - tail.blocks(features - step)) / 2e-3
    torch.testing.assert_close(derivative.push(one), slow, rtol=0.02, atol=0.02)
    forward, back = (derivative.push(one) * other).sum(), (derivative.pull(other) * one).sum()
    torch.testing.assert_close(forward, back)
    solved = derivative.solve(gradient, 60)
    torch.testing.assert_close(derivative.pull(solved), gradient, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, -40.0])
def test_every_label_of_a_plain_gradient_is_read_whatever_its_scale(family, scale):
    tail = draw_tail(family=family)
    features, labels, gradient = draw_gradient(tail)
    tokens, sure = read(tail, features, scale * gradient)
    right = 0 if scale > 0 else 1
    assert share_right(tokens[right], labels) == 1
    assert sure[right].min() > 0.999
    assert sure[1 - right].max() < 0.9
    assert share_right(tokens[1 - right], labels) < CHANCE


def test_nothing_is_read_from_the_gradient_of_another_model_or_of_other_texts():
    tail = draw_tail()
    features, labels, gradient = draw_gradient(tail)
    others = [
        draw_gradient(draw_tail(seed=9))[2],
        gradient.roll(1, dims=0),
        torch.randn(gradient.shape),
    ]
    for other in others:
        tokens, sure = read(tail, features, other)
        assert share_right(tokens[0], labels) < CHANCE
    assert sure[0].max() < 0.9


def test_the_tails_layers_matter_and_the_steps_undo_them():
    tail = draw_tail(spread=8.0)
    features, labels, gradient = draw_gradient(tail)
    shares = [share_right(read(tail, features, gradient, steps)[0][0], labels) for steps in (0, 60)]
    assert shares[1] == 1
    assert shares[0] < shares[1]


def test_weights_of_messages_are_found_up_to_a_factor_and_unmix():
    tail = draw_tail()
    features, labels, gradient = draw_gradient(tail)
    weights = torch.tensor([[0.7, -1.2, 1.5]])
    messages = weights[0, :, None, None, None] * gradient
    found = weights_from(messages.flatten(1)[None])
    ratio = found / weights
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    common = combine(found.T.expand(-1, TEXTS), messages)
    tokens, sure = read(tail, features, common)
    best = int(sure[1].mean() > sure[0].mean())
    assert share_right(tokens[best], labels) == 1
