"""SanText's probabilities, by a loop over tokens."""

import math

import pytest
import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import METHODS, Method, Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for

COUNTS = torch.tensor([9, 0, 5, 1, 8, 2, 3, 0, 4])
"""Of tokens 0 to 8; 0 is special. Of the 6 others that occur, the rarer 3 are 3, 5 and 6."""
RARE, FREQUENT, NEVER = [3, 5, 6], [8, 2, 4], [1, 7]


def tokens() -> Tokens:
    table = torch.randn(len(COUNTS), 4, generator=rng_for(0, "table"))
    return Tokens(table, COUNTS, frozenset({0}))


def build(**fields) -> Method:
    site = Site("client", Leg.SMASHED, (8, 4), 4, torch.device("cpu"), tokens=tokens())
    return METHODS["santext"](**fields).build(site)


def draw_replacements(method: Method, token: int) -> Tensor:
    """Return the replacements of the same token in 8,000 draws."""
    ids = torch.full((200, 40), token)
    return method.transform(Batch(ids, ids, torch.arange(200)), Step(0, 1, 0, 5)).inputs.flatten()


def probabilities(token: int, among: list[int], epsilon: float) -> list[float]:
    table = tokens().embeddings.double()
    weights = [
        math.exp(-epsilon / 2 * math.sqrt(float((table[token] - table[other]).square().sum())))
        for other in among
    ]
    return [weight / sum(weights) for weight in weights]


def shares(tokens: Tensor, among: list[int]) -> list[float]:
    return [float((tokens == other).double().mean()) for other in among]


@pytest.mark.parametrize("token", [*RARE, *NEVER])
def test_a_rare_token_becomes_a_rare_one_by_its_distance(token):
    result = draw_replacements(build(epsilon=2.0), token)
    expected = probabilities(token, RARE, 2.0)
    assert shares(result, RARE) == pytest.approx(expected, abs=0.02)
    assert set(result.tolist()) <= set(RARE)


@pytest.mark.parametrize("token", FREQUENT)
def test_other_tokens_change_with_probability_p(token):
    result = draw_replacements(build(epsilon=2.0, p=0.3), token)
    expected = [0.3 * each for each in probabilities(token, RARE, 2.0)]
    assert shares(result, RARE) == pytest.approx(expected, abs=0.02)
    assert shares(result, [token]) == pytest.approx([0.7], abs=0.02)


def test_all_tokens_are_sensitive_in_plain_santext():
    result = draw_replacements(build(epsilon=2.0, sensitive=1.0), 2)
    every = sorted([*RARE, *FREQUENT])
    assert shares(result, every) == pytest.approx(probabilities(2, every, 2.0), abs=0.02)


def test_a_large_budget_keeps_rare_tokens():
    assert (draw_replacements(build(epsilon=1000.0), 5) == 5).all()


def test_the_papers_strength_is_the_default():
    assert METHODS["santext"]().p == 0.05
