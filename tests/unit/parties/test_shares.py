"""One gradient sent as several messages: the replies, weighed, are the gradient's own reply."""

import pytest
import torch
from by_hand import Cut, cut, same
from torch import Tensor, nn

from simsplit.legs import Leg
from simsplit.methods.method import Method, Share, Step
from simsplit.parties.optimizers import SgdConfig

PLAIN = SgdConfig(lr=0.1)


class Halves(Method):
    """Two messages that are not the gradient, and weights that make it of them."""

    def split_gradient(self, grad: Tensor, step: Step) -> list[Share]:
        noise = torch.randn(grad.shape, generator=step.make_rng("noise"))
        return [Share(grad + noise, 0.25), Share(grad - noise / 3, 0.75)]


class PrivateBackprop(Method):
    """m unrecognisable mixtures of the gradient and of noise, by a random invertible matrix."""

    def __init__(self, m: int) -> None:
        self.m = m

    def split_gradient(self, grad: Tensor, step: Step) -> list[Share]:
        rng = step.make_rng("mixing")
        mixing = torch.randn(self.m, self.m, generator=rng)
        noise = torch.randn(self.m - 1, *grad.shape, generator=rng) * grad.std()
        mixed = torch.tensordot(mixing, torch.cat([grad[None], noise]), dims=1)
        weights = torch.linalg.inv(mixing)[0]
        return [Share(one, w.item()) for one, w in zip(mixed, weights, strict=True)]


def head_after_a_step(*methods: Method) -> tuple[Cut, Tensor]:
    made = cut(methods=methods, optimizer=PLAIN).train()
    return made, made.parts.head[1].weight.detach()


@pytest.mark.parametrize(
    ("methods", "messages"),
    [
        ((Halves(),), 2),
        ((PrivateBackprop(3),), 3),
        ((Halves(), PrivateBackprop(3)), 6),
    ],
)
def test_the_recombined_gradient_is_exact(methods: tuple[Method, ...], messages: int) -> None:
    plain, expected = head_after_a_step()
    several, actual = head_after_a_step(*methods)
    (sent,), (reply,) = several.tap.on(Leg.FEATURES_GRAD), several.tap.on(Leg.SMASHED_GRAD)
    (true,) = plain.tap.on(Leg.FEATURES_GRAD)[0].tensors
    assert len(sent.tensors) == len(reply.tensors) == messages
    assert not any(torch.allclose(one, true, rtol=0.01) for one in sent.tensors)
    assert torch.allclose(actual, expected, atol=1e-5 * PLAIN.lr)
    assert same(plain.parts.tail.state_dict(), several.parts.tail.state_dict())


def test_the_trunk_learns_from_the_sum_of_the_messages() -> None:
    made = cut(methods=[Halves()], optimizer=PLAIN)
    before = made.parts.trunk[0].weight.detach().clone()
    made.train()
    features = made.tap.on(Leg.FEATURES)[0].tensors[0]
    smashed = made.tap.on(Leg.SMASHED)[0].tensors[0]
    total = sum(made.tap.on(Leg.FEATURES_GRAD)[0].tensors)
    gradient = (total * (1 - features**2)).T @ smashed  # a linear layer and tanh, by hand
    moved = before - made.parts.trunk[0].weight
    assert torch.allclose(moved, PLAIN.lr * gradient, atol=1e-6)


def test_replies_are_each_messages_own() -> None:
    made = cut(methods=[Halves()])
    made.train()
    weight = nn.Parameter(made.parts.trunk[0].weight)  # after the step: only its shape matters
    replies = made.tap.on(Leg.SMASHED_GRAD)[0].tensors
    assert [reply.shape for reply in replies] == [(8, weight.shape[1])] * 2
    assert not torch.equal(*replies)
