"""The variational bottleneck: its sample, its mean and its divergence, worked out another way."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.mid import Mid
from simsplit.seeds import rng_for

SHAPES = [(7, 6), (6, 3, 5), (6,)]
"""Of texts, images and vectors, all 6 wide."""


def build(shape: tuple[int, ...], side: str = "client", **fields) -> Method:
    site = Site(side, Leg.SMASHED, shape, 4, torch.device("cpu"))
    return METHODS["mid"](**fields).build(site)


def step(number: int = 0, **fields) -> Step:
    return Step(0, 1, number, 5, **fields)


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng_for(0, "values"))


def rows(z: Tensor) -> Tensor:
    """Flatten to a row for each place of a text or an image, or for each vector."""
    return z.permute(0, 2, 3, 1).reshape(-1, 6) if z.dim() == 4 else z.reshape(-1, 6)


def posterior(method: Mid, z: Tensor) -> Normal:
    """Compute one Linear of twice the width, ReLU, and softplus(s - 0.5)."""
    linear = next(each for each in method.module.modules() if isinstance(each, nn.Linear))
    assert linear.weight.shape == (12, 6)
    out = torch.clamp(rows(z) @ linear.weight.T + linear.bias, min=0)
    return Normal(out[:, :6], torch.log1p(torch.exp(out[:, 6:] - 0.5)))


def decode(method: Mid, latent: Tensor) -> Tensor:
    linear = [each for each in method.module.modules() if isinstance(each, nn.Linear)][-1]
    assert linear.weight.shape == (6, 6)
    return torch.clamp(latent @ linear.weight.T + linear.bias, min=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_evaluation_sends_the_mean_decoded(shape):
    method, z, here = build(shape), values(3, *shape), step(training=False)
    sent = method.encode(z, here)
    assert sent.shape == z.shape
    torch.testing.assert_close(rows(sent), decode(method, posterior(method, z).mean))
    assert torch.equal(sent, method.encode(z, step(1, training=False)))
    assert method.compute_encode_loss(here) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_term_is_the_mean_divergence_from_a_standard_normal(shape):
    method, z, here = build(shape, weight=0.01), values(3, *shape), step()
    method.encode(z, here)
    every = kl_divergence(posterior(method, z), Normal(0.0, 1.0))
    assert every.shape == (z.numel() // 6, 6)
    torch.testing.assert_close(method.compute_encode_loss(here), 0.01 * every.mean())
    assert here.figures["mid_kl"] == pytest.approx(every.mean().item(), rel=1e-5)
    assert not here.memo


def test_training_sends_samples_of_the_posterior():
    """The decoder made the identity: what is sent is the sample, which is not negative here."""
    method, z = build((40, 6)), values(200, 40, 6)
    linear = [each for each in method.module.modules() if isinstance(each, nn.Linear)][-1]
    with torch.no_grad():
        linear.weight.copy_(torch.eye(6))
        linear.bias.fill_(20.0)
    latent = rows(method.encode(z, step())) - 20
    normal = posterior(method, z)
    standard = ((latent - normal.mean) / normal.stddev).detach()
    assert standard.mean().abs() < 0.02
    assert standard.std().item() == pytest.approx(1.0, abs=0.02)
    again = method.encode(z, step())
    assert torch.equal(again, method.encode(z, step()))
    assert not torch.equal(again, method.encode(z, step(1)))


def test_gradients_reach_the_head_and_both_layers():
    method, z, here = build((7, 6)), values(3, 7, 6).requires_grad_(), step()
    method.encode(z, here).sum().backward()
    assert z.grad.abs().sum() > 0
    assert all(weight.grad is not None for weight in method.module.parameters())


def test_the_divergence_alone_teaches_the_encoder_and_not_the_decoder():
    method, here = build((7, 6)), step()
    method.encode(values(3, 7, 6), here)
    method.compute_encode_loss(here).backward()
    taught = [weight.grad is not None for weight in method.module.parameters()]
    assert taught == [True, True, False, False]


def test_without_weight_there_is_no_term():
    method, here = build((7, 6), weight=0), step()
    method.encode(values(3, 7, 6), here)
    assert method.compute_encode_loss(here) is None


def test_an_evaluation_samples_if_asked_to():
    method, z = build((7, 6), inference="sample"), values(3, 7, 6)
    first, second = (method.encode(z, step(each, training=False)) for each in range(2))
    assert not torch.equal(first, second)


def test_the_papers_strength_is_the_default_and_all_of_it_is_the_clients():
    assert METHODS["mid"]().weight == 1e-4
    server = build((7, 6), "server")
    assert type(server) is Method
