"""Figures of both ends of generation, by hand and against the published table."""

import math

import pytest

from simsplit.metrics.text import (
    combine_ends,
    compute_attack_performance,
    compute_defence_score,
    entity_f1,
)


def test_ap_is_bleu_as_a_share():
    text = "the server reads the answer"
    assert compute_attack_performance(text, text) == pytest.approx(1)
    assert compute_attack_performance("", text) == 0
    # all n-grams are there, and the brevity penalty of 4 words for 5 is left
    assert compute_attack_performance("the server reads the", text) == pytest.approx(
        math.exp(1 - 5 / 4)
    )


def test_ap_of_both_ends_is_weighted():
    assert combine_ends(0.2, 0.6) == pytest.approx(0.4)
    assert combine_ends(0.2, 0.6, alpha=1) == 0.2
    assert combine_ends(0.2, 0.6, alpha=0.25) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("mp", "ap", "undefended", "published"),
    [
        (0.516, 0.017, 0.56, 0.968),  # ADMI, Fin, 3B
        (0.459, 0.296, 0.56, 0.819),  # DualGuard
        (0.385, 0.746, 0.56, 0.648),  # SanText
        (0.205, 0.007, 0.187, 0.995),  # ADMI, Med, 8B: more utility than undefended
        (0.205, 0.016, 0.176, 0.989),  # ADMI, Dolly, 8B: the same
        (0.194, 0.845, 0.187, 0.626),  # DP-Forward, Med, 8B
    ],
)
def test_dcs_is_that_of_the_published_table(mp, ap, undefended, published):
    assert compute_defence_score(ap, mp, undefended) == pytest.approx(published, abs=6e-4)


def test_dcs_weighs_what_beta_says():
    assert compute_defence_score(0.5, 0.0, 1.0, beta=0) == pytest.approx(1 / 1.5)
    assert compute_defence_score(0.5, 0.0, 1.0, beta=1) == pytest.approx(1 / 2)
    assert compute_defence_score(0.0, 0.7, 0.5) == 1


def test_entities_are_capitalised_words_and_numbers():
    truth = "Alice paid 1,200.50 to Bob, and Bob paid 3"
    assert entity_f1(truth, truth) == 1
    assert entity_f1("alice paid bob", truth) == 0
    # of Alice, 1,200.50, Bob, Bob and 3 two are found, among three: Bob, 3 and Carol
    assert entity_f1("Bob met Carol at 3", truth) == pytest.approx(2 * 2 / (5 + 3))
    assert entity_f1("Bob Bob Bob", truth) == pytest.approx(2 * 2 / (5 + 3))
    assert entity_f1("anything", "no names here") is None
