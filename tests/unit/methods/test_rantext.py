"""RanText's replacements, by the published code's loop over occurrences."""

import math

import numpy as np
import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

COUNT, WIDTH = 12, 4


def tokens() -> Tokens:
    # Dimensions of different ranges, and a special token outside of all of them.
    table = torch.randn(COUNT, WIDTH, generator=rng_for(0, "table")) * torch.tensor([4, 2, 1, 0.5])
    table[0] = 100
    return Tokens(table, torch.arange(COUNT) % 5, frozenset({0}))


def build(given: Tokens, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (8, WIDTH), 4, torch.device("cpu"), tokens=given)
    return METHODS["rantext"](**fields).build(site)


def count_replacements(method: Method, token: int) -> list[float]:
    ids = torch.full((400, 50), token)
    result = method.transform(Batch(ids, ids, torch.arange(400)), Step(0, 1, 0, 5)).inputs
    return [float((result == other).double().mean()) for other in range(COUNT)]


def replay_published(given: Tokens, token: int, epsilon: float, times: int) -> list[float]:
    """Replace a token so many times as the published code does, by numpy's noise."""
    rng = np.random.default_rng(0)
    table = given.embeddings.numpy().astype(np.float64)
    ordinary = table[1:]
    scale = 19.064721649556482 * epsilon - 38.1294334077209
    divisor = epsilon
    if epsilon >= 2:
        divisor = 0.01658160142016071 * math.log(scale) + 9.311083811697406
    spread = (ordinary.max(0) - ordinary.min(0)) / divisor
    distances = np.linalg.norm(ordinary - table[token], axis=1)
    order = distances.argsort()
    counts = np.zeros(COUNT)
    for _ in range(times):
        noisy = table[token] + rng.laplace(0, spread)
        radius = np.linalg.norm(table[token] - noisy)
        near = order[: np.searchsorted(distances[order], radius)]
        weights = np.exp(epsilon / 2 * (radius - distances[near]) / radius)
        counts[1 + rng.choice(near, p=weights / weights.sum())] += 1
    return (counts / times).tolist()


@pytest.mark.parametrize("epsilon", [0.5, 1.9, 2.1, 6.0])
@pytest.mark.parametrize("token", [3, 7])
def test_a_token_becomes_what_published_code_makes_of_it(token, epsilon):
    given = tokens()
    expected = replay_published(given, token, epsilon, 8000)
    result = count_replacements(build(given, epsilon=epsilon), token)
    assert result == pytest.approx(expected, abs=0.02)
    assert result[0] == 0


def test_lists_differ_between_occurrences():
    """A list of the same length each time would have the right mean and the wrong shares."""
    method = build(tokens(), epsilon=6.0)
    noise = torch.rand(200, WIDTH, generator=rng_for(0, "noise"), dtype=torch.float64)
    odds, _ = method.compute_log_odds(torch.full((200,), 3), noise, tokens())
    lengths = odds.isfinite().sum(1)
    assert len(lengths.unique()) > 2


def test_a_token_stays_where_noise_is_none():
    odds, _ = build(tokens()).compute_log_odds(torch.tensor([3]), torch.zeros(1, WIDTH), tokens())
    assert odds.isfinite().nonzero().tolist() == [[0, 3]]


def test_the_published_codes_strength_is_the_default():
    assert METHODS["rantext"]().epsilon == 3


def test_noise_falls_to_a_fifth_at_two_and_hardly_further():
    divisors = [METHODS["rantext"](epsilon=each).noise_divisor for each in (1.99, 2.0, 3.0, 14.0)]
    assert divisors == pytest.approx([1.99, 9.12, 9.36, 9.40], abs=0.01)
