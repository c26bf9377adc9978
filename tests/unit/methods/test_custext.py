"""CusText's probabilities, by a loop over a group."""

import math

import pytest
import torch

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for


def tokens(count: int = 12) -> Tokens:
    table = torch.randn(count, 4, generator=rng_for(0, "table"))
    return Tokens(table, torch.arange(count) % 5, frozenset({0}))


def build(given: Tokens, **fields) -> Method:
    site = Site("client", Leg.SMASHED, (8, 4), 4, torch.device("cpu"), tokens=given)
    return METHODS["custext"](**fields).build(site)


def shares(method: Method, token: int, among: list[int]) -> list[float]:
    ids = torch.full((200, 40), token)
    batch = Batch(ids, ids, torch.arange(200))
    result = method.transform(batch, Step(0, 1, 0, 5)).inputs
    return [float((result == other).double().mean()) for other in among]


def probabilities(given: Tokens, token: int, group: list[int], epsilon: float) -> list[float]:
    """Compute exp(epsilon / 2 times the cosine, scaled to lie in [0, 1] within the group)."""
    table = given.embeddings.double()
    near = [float(torch.cosine_similarity(table[token], table[other], 0)) for other in group]
    scaled = [(each - min(near)) / (max(near) - min(near)) for each in near]
    weights = [math.exp(epsilon / 2 * each) for each in scaled]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("token", [1, 4, 7, 11])
def test_a_token_becomes_one_of_its_group_by_likeness(token):
    given = tokens()
    groups = given.get_groups(4)
    group = [each for each in groups.members[groups.of[token]].tolist() if each >= 0]
    expected = probabilities(given, token, group, 3.0)
    result = shares(build(given, epsilon=3.0, group=4), token, group)
    assert result == pytest.approx(expected, abs=0.02)
    assert sum(result) == pytest.approx(1.0)


def test_a_token_alone_in_its_group_stays():
    given = tokens()
    last = given.get_groups(10).members[1].tolist()
    assert [each >= 0 for each in last] == [True] + [False] * 9
    assert shares(build(given, epsilon=0.0, group=10), last[0], last[:1]) == [1.0]


def test_the_papers_strength_is_the_default():
    config = METHODS["custext"]()
    assert (config.epsilon, config.group) == (100, 100)
