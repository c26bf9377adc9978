"""What scores and clusters tell of labels, against slow, obvious second ways."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from simsplit.metrics import leaks
from simsplit.metrics.metric_registry import MEMBER_RATES

RNG = np.random.default_rng


def test_a_score_is_given_the_better_sign():
    labels = np.array([0, 0, 1, 1, 1], dtype=bool)
    scores = np.array([5.0, 4.0, 3.0, 2.0, 4.5])
    plain = roc_auc_score(labels, scores)
    assert plain < 0.5
    for each in (scores, -scores):
        assert leaks.measure_auc(each, labels, RNG(0)).value == pytest.approx(1 - plain)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_match_is_the_best_of_all_permutations(seed):
    labels, clusters = RNG(seed).integers(0, 4, (2, 30))
    each = [np.take(p, clusters) == labels for p in itertools.permutations(range(4))]
    assert leaks.match_clusters(clusters, labels).sum() == max(hits.sum() for hits in each)


def test_clusters_beyond_the_classes_are_no_hits():
    labels, clusters = np.array([0, 0, 0, 1, 1]), np.array([2, 2, 0, 1, 1])
    assert leaks.match_clusters(clusters, labels).tolist() == [True, True, False, True, True]


def test_purity_lets_several_clusters_have_the_same_class():
    labels, clusters = np.array([0, 0, 0, 1, 1, 0]), np.array([2, 2, 0, 1, 1, 1])
    assert leaks.match_majority(clusters, labels).tolist() == [True, True, True, True, True, False]


def test_an_interval_holds_its_auc_whatever_the_sign():
    labels = RNG(0).integers(0, 2, 80).astype(bool)
    scores = np.round(RNG(1).normal(size=80) + labels, 1)  # ties among them
    up, down = (leaks.measure_auc(sign * scores, labels, RNG(2)) for sign in (1.0, -1.0))
    drawn, rng = [], RNG(3)
    held = [np.flatnonzero(labels == each) for each in (False, True)]
    for _ in range(200):
        rows = np.concatenate([rng.choice(each, len(each)) for each in held])
        drawn.append(roc_auc_score(labels[rows], scores[rows]))
    assert (up.low, up.high) == pytest.approx(np.quantile(drawn, (0.025, 0.975)), abs=0.03)
    assert up.low < up.value < up.high
    assert down == pytest.approx(up, abs=0.02)
    assert [up.value, down.value] == pytest.approx([roc_auc_score(labels, scores)] * 2)


def test_a_perfect_score_has_a_perfect_interval():
    labels = np.arange(20) % 2 == 0
    assert leaks.measure_auc(labels.astype(float), labels, RNG(0)) == (1.0, 1.0, 1.0)


def test_chance_is_what_permuted_labels_come_to():
    labels = np.arange(40) % 4 == 0
    scores, drawn = RNG(0).normal(size=40), []
    for seed in range(200):
        result = roc_auc_score(RNG(seed).permutation(labels), scores)
        drawn.append(max(result, 1 - result))
    chance = leaks.simulate_chance_auc(labels, RNG(1))
    assert chance.value == pytest.approx(np.mean(drawn), abs=0.01)
    assert chance.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.03)
    assert chance.low >= 0.5


def test_chance_under_the_best_match_is_better_than_without():
    labels = np.arange(30) % 3
    matched = leaks.simulate_chance(labels, leaks.match_clusters, RNG(0))
    named = leaks.simulate_chance(labels, leaks.match_equal, RNG(0))
    assert named.value == pytest.approx(1 / 3, abs=0.02)
    assert matched.value > named.value + 0.08
    assert matched.low >= 1 / 3


def test_fewer_samples_make_chance_look_better():
    few, many = (leaks.simulate_chance_auc(np.arange(n) % 2 == 0, RNG(0)) for n in (16, 400))
    assert few.value > many.value + 0.05


def test_the_majority_is_the_largest_class():
    assert leaks.measure_majority(np.array([0, 1, 1, 1])).value == 0.75


@pytest.mark.parametrize("others", [32, 64, 150, 1000])
def test_a_coin_finds_what_scores_that_say_nothing_find(others):
    rng = np.random.default_rng(others)
    members = np.arange(40 + others) < 40
    coin = leaks.measure_coin(members)
    for name, rate in MEMBER_RATES.items():
        drawn = (rng.random(len(members)) for _ in range(4000))
        found = [leaks._measure_rate(scores, members, rate).value for scores in drawn]
        assert np.mean(found) == pytest.approx(coin[name], abs=0.004)
