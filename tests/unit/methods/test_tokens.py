"""Tokens by frequency, and groups of near ones, against loops."""

import numpy as np
import torch

from simsplit.methods.tokens import Tokens
from simsplit.seeds import rng_for


def tokens(size: int = 13, special: frozenset[int] = frozenset({0, 5})) -> Tokens:
    counts = torch.tensor([9, 1, 4, 0, 4, 7, 2, 0, 5, 1, 1, 3, 6])[:size]
    return Tokens(torch.randn(size, 4, generator=rng_for(0, "table")), counts, special)


def test_ordinary_tokens_come_by_frequency_then_number():
    assert tokens().ordinary.tolist() == [12, 8, 2, 4, 11, 6, 1, 9, 10, 3, 7]
    assert tokens().is_ordinary.tolist() == [number not in (0, 5) for number in range(13)]


def by_hand(given: Tokens, size: int) -> list[set[int]]:
    """Group tokens from the most frequent on: each with its nearest that are in no group yet."""
    table = given.embeddings.double().numpy()
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    free, result = given.ordinary.tolist(), []
    while free:
        first = free[0]
        near = sorted(free, key=lambda other: -table[first] @ table[other])[:size]
        result.append(set(near))
        free = [each for each in free if each not in near]
    return result


def test_groups_are_the_nearest_that_are_left():
    given = tokens()
    groups = given.get_groups(4)
    expected = by_hand(given, 4)
    assert [set(row.tolist()) - {-1} for row in groups.members] == expected
    assert [len(each) for each in expected] == [4, 4, 3]
    for number, members in enumerate(expected):
        assert all(groups.of[member] == number for member in members)


def test_groups_are_made_once():
    given = tokens()
    assert given.get_groups(4) is given.get_groups(4)
    assert given.get_groups(4) is not given.get_groups(3)


def test_a_token_without_a_direction_has_a_group_too():
    given = tokens()
    given.embeddings[12] = 0.0
    assert 12 in given.get_groups(4).members[0]
