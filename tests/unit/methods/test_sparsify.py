"""What lies below the quantile of a sample's magnitudes is not sent, nor is its gradient."""

import pytest
import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.seeds import rng_for


def build(side: str = "client", **fields) -> Method:
    site = Site(side, Leg.SMASHED, (10, 8), 4, torch.device("cpu"))
    return METHODS["sparsify"](**fields).build(site)


def step(**fields) -> Step:
    return Step(0, 1, 0, 0, **fields)


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=rng_for(0, "values"))


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.95, 0.995])
@pytest.mark.parametrize("shape", [(3, 7, 8), (2, 4, 5, 5), (4, 21), (5, 1)])
def test_values_below_the_quantile_of_their_sample_are_zero(sparsity, shape):
    z = values(*shape)
    sent = build(sparsity=sparsity).encode(z, step())
    for row, kept in zip(z.flatten(1).double(), sent.flatten(1), strict=True):
        threshold = torch.quantile(row.abs(), sparsity)
        assert torch.equal(kept, torch.where(row.abs() >= threshold, row, 0).float())


def test_the_papers_strength_is_the_default():
    assert METHODS["sparsify"]().sparsity == 0.95


def test_texts_of_any_length_arrive_as_they_were_encoded():
    client, server = build(), build("server")
    for length in (10, 3):
        z, here, there = values(2, length, 8), step(), step()
        sent = client.encode(z, here)
        arrived = server.unpack(client.pack(sent, here), there)
        assert torch.equal(arrived, sent)


def test_a_kept_value_costs_itself_and_its_index():
    """Of 80 values 5 are kept (76 lie below the quantile's place, 75.05), at 7 bits an index."""
    client, here = build(), step()
    packed = client.pack(client.encode(values(2, 10, 8), here), here)
    kept = 80 - 76
    assert sum(tensor.nbytes for tensor in packed) == 2 * (kept * 4 + -(-kept * 7 // 8)) + 2 * 4


def test_gradients_cross_for_kept_values_alone():
    client, server = build(sparsity=0.5), build("server", sparsity=0.5)
    z, here, there = values(2, 3, 8).requires_grad_(), step(), step()
    sent = client.encode(z, here)
    server.unpack(client.pack(sent.detach(), here), there)
    gradient = values(2, 3, 8) + 5
    (back,) = server.pack(gradient, there)
    assert back.shape == (2, 12)
    sent.backward(client.unpack((back,), here))
    assert torch.equal(z.grad, gradient * (sent != 0))


def test_an_evaluation_keeps_nothing():
    client, server = build(), build("server")
    here, there = step(training=False), step(training=False)
    server.unpack(client.pack(client.encode(values(2, 4, 8), here), here), there)
    assert not here.memo
    assert not there.memo


def test_tokens_can_be_thinned_out_one_by_one():
    """Each keeps 4 of its 8 values, and tells their places in 3 bits each."""
    fields = {"sparsity": 0.5, "per": "token"}
    client, server, z = build(**fields), build("server", **fields), values(2, 10, 8)
    here, there = step(), step()
    sent = client.encode(z, here)
    assert ((sent != 0).sum(-1) == 4).all()
    assert (sent.abs().amin(-1) == 0).all()
    packed = client.pack(sent, here)
    assert torch.equal(server.unpack(packed, there), sent)
    assert sum(tensor.nbytes for tensor in packed) == 2 * 10 * (4 * 4 + 2) + 2 * 4
    assert client.unpack(server.pack(sent, there), here).shape == z.shape
    assert torch.equal(client.encode(z[:, :1], step()), sent[:, :1])
    whole, alone = METHODS["sparsify"](), METHODS["sparsify"](**fields)
    assert (whole.can_run_in_sessions(), alone.can_run_in_sessions()) == (False, True)
