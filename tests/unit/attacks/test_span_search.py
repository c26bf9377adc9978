"""The pieces of the span search, by hand."""

import pytest
import torch

from simsplit.attacks.inverters import GaussianInverter, build_inverter, divide_by_level
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.span_search import (
    GaussianSureness,
    SpanSearch,
    SpanSearchConfig,
    Sureness,
    pick_distinct,
    whiten,
)
from simsplit.seeds import rng_for


def draws(*shape):
    return torch.randn(shape, generator=rng_for(0, "draws", *shape))


def test_levelled_texts_have_one_size_whatever_one_token_is():
    x = draws(4, 9, 8)
    torch.testing.assert_close(divide_by_level(37 * x), divide_by_level(x))
    huge = x.clone()
    huge[:, 0] *= 1000
    torch.testing.assert_close(
        divide_by_level(huge)[:, 1:], divide_by_level(x)[:, 1:], rtol=0.3, atol=0.3
    )


def test_whitening_keeps_the_span_and_is_not_led_by_a_huge_token():
    x = draws(2, 3, 2, 5, 8)
    x[..., 0, :] *= 1000
    basis = whiten(x)
    for one, other in zip(x.flatten(2), basis.flatten(2), strict=True):
        assert torch.linalg.matrix_rank(torch.cat([one, other]), rtol=1e-4) == 3
    even = (basis * x.square().mean((1, 4), keepdim=True).rsqrt()).flatten(2)
    torch.testing.assert_close(even @ even.mT, torch.eye(3).expand(2, 3, 3), rtol=0, atol=1e-4)


def test_directions_that_are_not_there_are_zeros():
    x = draws(1, 2, 1, 5, 8)
    basis = whiten(torch.cat([x, x[:, :1] + x[:, 1:]], 1))
    assert basis.flatten(2).any(-1).sum() == 2


def test_peaks_differ_and_the_surest_comes_first():
    v = torch.tensor([[[1.0, 0.0], [0.999, 0.04], [0.0, 1.0], [-1.0, 0.0]]])
    result = pick_distinct(v, torch.tensor([[1.0, 3.0, 2.0, 2.5]]), 3)
    torch.testing.assert_close(result, v[:, [1, 2, 1]])  # no third: the surest again


def learn_inverter(width=12, vocabulary=40):
    """Train an inverter of a linear head's outputs; return it and the embeddings."""
    table, turn = draws(vocabulary, width), draws(width, width)
    inverter = GaussianInverter(width, table, 0, SipConfig(inverter="gaussian"))
    tokens = torch.randint(0, vocabulary, (30, 10), generator=rng_for(0, "tokens"))
    noise = 0.1 * draws(30, 10, width)
    inverter.learn(divide_by_level(table[tokens] @ turn) + noise, tokens, learner=None)
    return inverter, table @ turn


def read_of(inverter, rows):
    scores = inverter(rows)
    return scores.argmax(-1), inverter.sure(inverter.features(rows), scores)


def test_the_gaussian_inverter_reads_a_linear_head_and_is_less_sure_of_mixtures():
    inverter, states = learn_inverter()
    one, other = (torch.randint(0, 40, (8, 10), generator=rng_for(n, "tokens")) for n in (1, 2))
    tokens, sure = read_of(inverter, divide_by_level(states[one]))
    assert (tokens == one).float().mean() > 0.95
    assert (sure > read_of(inverter, divide_by_level(states[one] + states[other]))[1]).all()
    assert (sure > read_of(inverter, -divide_by_level(states[one]))[1]).all()


def test_gaussian_scores_are_log_likelihoods_of_linear_means_and_one_covariance():
    """By the textbook: least squares, the covariance of what it leaves, and their densities."""
    inverter, _ = learn_inverter()
    inverter.penalty = 1e-9
    given, noise = draws(30, 10, 12).double(), draws(12, 12).double()
    tokens = torch.randint(0, 40, (30, 10), generator=rng_for(7, "tokens"))
    for sums in (inverter.of_tokens, inverter.cross, inverter.of_states):
        sums.zero_()
    inverter._solved = None
    z = (given @ noise).flatten(0, 1)
    inverter.learn(z[None].float(), tokens.flatten()[None], learner=None)
    known = inverter.table.double()
    means = known @ torch.linalg.lstsq(known[tokens.flatten()], z.float().double()).solution
    left = z.float().double() - means[tokens.flatten()]
    normal = [
        torch.distributions.MultivariateNormal(mean, left.T @ left / len(z)) for mean in means
    ]
    wanted = torch.stack([each.log_prob(z[:5].float().double()) for each in normal], -1)
    scores = inverter(z[None, :5].float())[0].double()
    torch.testing.assert_close(scores - scores[:, :1], wanted - wanted[:, :1], rtol=1e-3, atol=1e-3)


def search(kind):
    """Build an inverter, two groups of two rows, three messages, places, tokens, directions."""
    inverter = learn_inverter()[0]
    if kind == "recurrent":
        inverter = build_inverter(12, draws(40, 12), 0, SipConfig(hidden=8))
    places = torch.tensor([7, 0, 2, 9])
    return inverter, draws(2, 3, 2, 5, 12), places, torch.arange(1, 30), draws(2, 6, 3)


@pytest.mark.parametrize("kind", ["recurrent", "gaussian"])
def test_sureness_is_the_mean_over_the_named_places_among_the_named_tokens(kind):
    inverter, basis, places, tokens, v = search(kind)
    got = Sureness(inverter, basis, places, tokens).of(v)
    for group in range(2):
        for number, direction in enumerate(v[group]):
            rows = sum(weight * one for weight, one in zip(direction, basis[group], strict=True))
            features = inverter.features(divide_by_level(rows)).flatten(0, 1)[places]
            best = tokens[inverter.scores(features)[:, tokens].topk(2).indices]
            sure = inverter.sureness(features, best).mean()
            torch.testing.assert_close(got[group, number], sure)


def test_the_gaussian_one_is_as_sure_and_as_steep_by_sums_of_messages():
    inverter, basis, places, tokens, v = search("gaussian")
    # near pure directions: of odd ones all are alike
    basis = basis / 30 + learn_inverter()[1][torch.arange(60).view(2, 3, 2, 5) % 40]
    v = v / 10 + torch.eye(3).repeat(2, 2, 1)
    results = []
    for kind in (Sureness, GaussianSureness):
        leaf = v.clone().requires_grad_()
        sure = kind(inverter, basis, places, tokens).of(leaf)
        results.append((sure.detach(), *torch.autograd.grad(sure.sum(), leaf)))
    assert (results[0][0] > -2).any()
    assert results[0][1].any()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def find_texts(**options):
    """Plant four texts in each of 20 random mixtures; return, by mixture, whether all are found."""
    inverter, states = learn_inverter()
    texts = torch.randint(0, 40, (20, 4, 1, 10), generator=rng_for(3, "tokens"))
    basis = whiten(torch.einsum("gmk,gkbld->gmbld", draws(20, 4, 4), states[texts]))
    attack = SpanSearch.__new__(SpanSearch)
    attack.config = SpanSearchConfig(inverter="gaussian", peaks=4, **options)
    sureness = GaussianSureness(inverter, basis, torch.arange(10), torch.arange(40))
    starts = torch.nn.functional.normalize(draws(20, attack.config.starts, 4), dim=-1)
    peaks = torch.einsum("gpm,gmbld->gpbld", attack._climb(sureness, starts), basis)
    read = read_of(inverter, divide_by_level(peaks.flatten(0, 2)))[0].view(20, 4, 1, 1, 10)
    right = (read == texts[:, None]).float().mean((3, 4))
    return (right.amax(1) > 0.9).all(1)


def test_the_search_finds_every_text_of_every_mixture_for_its_many_starts_and_its_ascent():
    """An earlier search found nothing in 2 draws of 15: it must fail in none of 20."""
    assert find_texts().all()
    assert not find_texts(starts=16, kept=4).all()
    assert not find_texts(refinements=0).all()
