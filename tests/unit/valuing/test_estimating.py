"""Leave-one-out and Shapley values against values by hand and by a slow second way."""

import math
from itertools import permutations

import numpy as np
import pytest

from simsplit.valuing.estimating import (
    compute_shapley,
    draw_orders,
    is_exact,
    leave_one_out,
    list_coalitions,
    measure_noise,
    sample_shapley,
)

GLOVES = {frozenset(each): 0.0 for each in ((), (0,), (1,), (2,), (1, 2))}
GLOVES |= {frozenset(each): 1.0 for each in ((0, 1), (0, 2), (0, 1, 2))}
"""The glove game: client 0 has the left glove, 1 and 2 have right ones; a pair is worth 1."""


def gloves(members, seed):
    return np.array([GLOVES[members]])


def noisy(members, seed):
    """A score over 50 samples that each client changes by its number, and samples by chance."""
    rng = np.random.default_rng([seed, sum(2**each for each in members)])
    return sum(members) / 10 + rng.normal(0, 0.1, 50)


def by_orders(value, clients, seed):
    """Shapley values as they are defined, order by order."""
    orders = [*permutations(clients)]
    values = dict.fromkeys(clients, 0.0)
    for order in orders:
        for place, client in enumerate(order):
            before = frozenset(order[:place])
            change = value(before | {client}, seed).mean() - value(before, seed).mean()
            values[client] += change / len(orders)
    return values


def test_leave_one_out_by_hand():
    assert [each.value for each in leave_one_out(gloves, [0, 1, 2], [0])] == [1, 0, 0]
    assert [each.low for each in leave_one_out(gloves, [0, 1, 2], [0])] == [None] * 3


def test_shapley_values_of_the_glove_game():
    values = [each.value for each in compute_shapley(gloves, [0, 1, 2], [0])]
    assert values == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_weights_equal_the_mean_over_orders_and_sum_to_the_score(count):
    clients = [*range(count)]
    values = {each.client: each.value for each in compute_shapley(noisy, clients, [7])}
    assert values == pytest.approx(by_orders(noisy, clients, 7))
    whole = noisy(frozenset(clients), 7).mean() - noisy(frozenset(), 7).mean()
    assert math.fsum(values.values()) == pytest.approx(whole, abs=1e-12)


def test_sampled_orders_sum_to_the_score_and_come_near_the_exact_values():
    clients = [*range(4)]
    sampled = sample_shapley(noisy, clients, [7], 200, 0.0)
    whole = noisy(frozenset(clients), 7).mean() - noisy(frozenset(), 7).mean()
    assert math.fsum(each.value for each in sampled) == pytest.approx(whole, abs=1e-12)
    for each, exact in zip(sampled, compute_shapley(noisy, clients, [7]), strict=True):
        assert each.over == "orders"
        assert abs(each.value - exact.value) < 4 * each.standard_error


def test_an_order_is_cut_off_where_nothing_is_left_and_still_sums_to_the_score():
    asked = set()

    def value(members, seed):
        asked.add(members)
        return np.array([min(len(members), 2) / 2])

    clients = [*range(8)]
    values = [each.value for each in sample_shapley(value, clients, [0], 3, 0.0)]
    assert math.fsum(values) == pytest.approx(1)
    assert not any(2 < len(members) < 8 for members in asked)
    asked.clear()
    sample_shapley(value, clients, [0], 3, 0.5)
    assert not any(1 < len(members) < 8 for members in asked)


def test_orders_of_a_longer_series_begin_with_the_shorter_ones():
    few, many = ([order for order, _ in draw_orders(range(5), [1], count)] for count in (2, 9))
    assert many[:2] == few
    assert sorted(many[3]) == [*range(5)]


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_an_order_comes_twice_with_a_seed_only_when_all_have_come(seeds):
    """The same order trained again agrees with itself, and made an interval of no width."""
    for first in range(2, 40):
        drawn = [*draw_orders(range(3), [first, *seeds[1:]], 6 * len(seeds))]
        assert len({(*order, seed) for order, seed in drawn}) == 6 * len(seeds)
        assert len([*draw_orders(range(3), [first, first], 13)]) == 13


def test_intervals_are_over_samples_or_seeds():
    (one, *_) = leave_one_out(noisy, [1, 2], [0])
    change = noisy(frozenset({1, 2}), 0) - noisy(frozenset({2}), 0)
    assert one.over == "samples"
    assert one.standard_error == pytest.approx(change.std(ddof=1) / math.sqrt(50))
    assert one.low < one.value < one.high
    (several, *_) = leave_one_out(noisy, [1, 2], [0, 1, 2])
    means = [(noisy(frozenset({1, 2}), s) - noisy(frozenset({2}), s)).mean() for s in range(3)]
    assert several.over == "seeds"
    assert several.value == pytest.approx(np.mean(means))
    assert several.high - several.value == pytest.approx(
        4.3027 * np.std(means, ddof=1) / 3**0.5, rel=1e-4
    )


@pytest.mark.parametrize("estimate", [leave_one_out, compute_shapley])
def test_a_coalition_without_a_score_of_each_sample_leaves_no_interval_over_samples(estimate):
    def value(members, seed):
        scores = noisy(members, seed)
        return scores if members else np.array([scores.mean()])

    made = estimate(value, [1, 2], [0])
    alone = estimate(value, [1], [0])
    assert alone[0].low is None
    expected = [each.value for each in estimate(noisy, [1, 2], [0])]
    assert [each.value for each in made] == pytest.approx(expected)


def test_equal_clients_have_equal_values():
    def value(members, seed):
        rng = np.random.default_rng([seed, len(members)])
        return len(members) / 5 + rng.normal(0, 0.1, 50)

    first, second, third = compute_shapley(value, [0, 1, 2], [0])
    assert first.value == pytest.approx(second.value) == pytest.approx(third.value)
    sampled = sample_shapley(value, [*range(5)], [0], 40, 0.0)
    each_ = (value(range(5), 0).mean() - value((), 0).mean()) / 5
    assert all(each.low <= each_ <= each.high for each in sampled)


def test_costs():
    assert is_exact(3, 6)
    assert not is_exact(3, 5)
    assert len(set(list_coalitions([0, 1, 2], [0], 6))) == 8
    asked = set()
    sample_shapley(
        lambda members, seed: asked.add((members, seed)) or gloves(members, seed),
        [0, 1, 2],
        [4, 5],
        3,
        0.0,
    )
    assert asked == set(list_coalitions([0, 1, 2], [4, 5], 3))
    assert measure_noise(np.array([0.5])) == 0
    assert measure_noise(np.array([0.0, 1.0])) == pytest.approx(0.5)
