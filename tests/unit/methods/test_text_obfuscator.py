"""TextObfuscator: how large its noise is, and its two terms, worked out another way."""

import numpy as np
import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods.method import Site, Step
from simsplit.methods.text_obfuscator import TextObfuscator, TextObfuscatorConfig
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

WIDTH = 6


def vocabulary() -> Tokens:
    """Build three clusters of four tokens, far apart; only one token of the last occurs."""
    heaps = torch.tensor([[0.0], [10.0], [-10.0]]).repeat_interleave(4, 0).expand(-1, WIDTH)
    table = heaps + 0.01 * torch.randn(12, WIDTH, generator=rng_for(0, "table"))
    counts = torch.tensor([3, 1, 1, 1, 5, 1, 1, 1, 2, 0, 0, 0])
    return Tokens(table, counts, frozenset({0}))


def build(tokens: Tokens | None = None, **fields) -> TextObfuscator:
    site = Site("client", Leg.SMASHED, (4, WIDTH), 0, torch.device("cpu"), tokens=tokens)
    made = TextObfuscatorConfig(**fields).build(site)
    assert isinstance(made, TextObfuscator)
    return made


def test_noise_is_laplace_of_scale_one_over_epsilon():
    z = torch.zeros(50, 40, WIDTH)
    for training in (True, False):
        noise = build(epsilon=4.0).encode(z, Step(0, 1, 0, 5, training=training))
        assert noise.abs().mean().item() == pytest.approx(0.25, rel=0.03)
        assert noise.square().mean().item() == pytest.approx(2 * 0.25**2, rel=0.06)


def test_clusters_are_those_of_the_embeddings_and_rare_tokens_go_to_the_nearest():
    result = vocabulary().get_clusters(3)
    assert result.centres.shape == (3, WIDTH)
    assert [len(set(result.of[at : at + 4].tolist())) for at in (0, 4, 8)] == [1, 1, 1]
    assert len(set(result.of.tolist())) == 3
    near = torch.cdist(vocabulary().embeddings, result.centres).argmin(1)
    assert torch.equal(near, result.of)


def test_the_terms_draw_tokens_to_their_centres_and_centres_apart():
    tokens = vocabulary()
    method, step = build(tokens, clusters=3, close=0.1, away=0.5), Step(0, 1, 0, 5)
    ids = torch.tensor([[1, 5, 9, 2], [4, 8, 3, 0]])
    batch = Batch(ids, ids, torch.arange(2), lengths=torch.tensor([4, 3]))
    method.transform(batch, step)
    z = torch.randn(2, 4, WIDTH, generator=rng_for(0, "z"))
    method.encode(z, step)
    centres = method.module.weight.detach().numpy()
    real = [(row, place) for row in range(2) for place in range(4 - row)]
    gaps = [z[at].numpy() - centres[tokens.get_clusters(3).of[ids[at]]] for at in real]
    apart = sum(np.linalg.norm(centres[i] - centres[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    expected = 0.1 * np.mean(np.square(gaps)) - 0.5 * apart / (3 * 4 / 2)
    assert method.compute_encode_loss(step).item() == pytest.approx(expected, rel=1e-4)
    assert method.compute_encode_loss(step) is None


def test_a_vocabulary_of_fewer_tokens_has_fewer_clusters():
    method, step = build(vocabulary(), clusters=50), Step(0, 1, 0, 5)
    assert method.module.weight.shape == (50, WIDTH)
    assert len(vocabulary().get_clusters(50).centres) == 11
    ids = torch.tensor([[1, 5]])
    method.transform(Batch(ids, ids, torch.arange(1)), step)
    method.encode(torch.zeros(1, 2, WIDTH), step)
    term = method.compute_encode_loss(step)
    term.backward()
    assert torch.isfinite(term)
    assert method.module.weight.grad[11:].abs().max() == 0


def test_the_papers_strengths_are_the_defaults():
    config = TextObfuscatorConfig()
    assert (config.epsilon, config.clusters, config.close, config.away) == (5.0, 100, 0.1, 0.5)
