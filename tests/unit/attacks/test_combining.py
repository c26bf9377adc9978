"""Labels that are hidden in each adapter set and plain in a combination of them are found."""

import dataclasses

import pytest
import torch
from contracts.leaks import build_setting
from sklearn.metrics import roc_auc_score

from simsplit.attacks import ATTACKS
from simsplit.attacks.combining import search_sum, subtract_pairs
from simsplit.attacks.label_attack import KnownLabels
from simsplit.attacks.spectral import principal_components
from simsplit.attacks.views import views_of
from simsplit.legs import Leg
from simsplit.metrics.leaks import simulate_chance_auc
from simsplit.packets import Packet
from simsplit.seeds import rng_for

COUNT, WIDTH = 200, 24


def hide(weights):
    """Return labels, and sets of features whose sum with these weights is all that tells them."""
    rng = rng_for(4, "hidden")
    labels = torch.arange(COUNT) % 2
    weights = torch.nn.functional.normalize(torch.tensor(weights), dim=0)
    plain = torch.randn(COUNT, WIDTH, generator=rng) * 0.3
    plain[:, 0] += 2.0 * (2 * labels - 1)
    sets = torch.randn(len(weights), COUNT, WIDTH, generator=rng) * 20
    # What goes along the weights is replaced by what tells labels.
    along = torch.tensordot(weights, sets, 1)
    return labels, sets + weights[:, None, None] * (plain - along)


def auc(rows, labels, component=0):
    scores = principal_components(rows, component + 1)[:, component]
    one = roc_auc_score(labels, scores)
    return max(one, 1 - one)


def see(sets):
    """Return the views of features of these sets."""
    seen = [
        Packet(0, Leg.ADAPTERS, 1, 0, (torch.zeros(len(sets), 3),)),
        Packet(0, Leg.FEATURES, 1, 0, (sets.transpose(0, 1).contiguous(),)),
    ]
    names = ("features", "difference", "sum")
    return {(each.name, each.adapter): each.rows for each in views_of(known(), seen, names)}


def known():
    return dataclasses.replace(build_setting().known)


def test_labels_that_only_the_difference_tells_are_found():
    labels, sets = hide([1.0, -1.0])
    views = see(sets)
    assert views.keys() == {("features", 0), ("features", 1), ("difference", 0), ("sum", 0)}
    for number in (0, 1):
        assert auc(views["features", number], labels) < 0.62
    assert auc(views["difference", 0], labels) > 0.99


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.8, 0.6], [1.0, -3.0], [0.5, 0.7, -0.6]])
def test_labels_that_one_sum_tells_are_found(weights):
    labels, sets = hide(weights)
    for rows in (*sets, *subtract_pairs(sets, 0)):
        assert auc(rows, labels) < 0.65 or weights == [1.0, -1.0]
    (found,) = search_sum(sets, 7)
    assert auc(found, labels) > 0.95


def test_all_pairs_are_subtracted():
    sets = torch.randn(3, 4, 5)
    assert [each.shape for each in subtract_pairs(sets, 0)] == [(4, 5)] * 3
    assert torch.equal(subtract_pairs(sets, 0)[1], sets[0] - sets[2])


def test_one_set_has_no_combinations():
    assert see(torch.randn(1, 6, 5)).keys() == {("features", 0)}


def test_a_later_component_that_tells_labels_is_found_by_five_and_not_by_one():
    labels = torch.arange(COUNT) % 2
    rows = torch.randn(COUNT, WIDTH, generator=rng_for(5, "rows"))
    rows[:, 0] *= 9
    rows[:, 1] *= 6
    rows[:, 2] += 3.0 * (2 * labels - 1)
    seen = [Packet(0, Leg.FEATURES, 1, 0, (rows,))]
    results = {}
    for count in (1, 5):
        attack = ATTACKS["spectral"](components=count, views=["features"]).build(known())
        attack.known_labels = KnownLabels(2, torch.empty(0), torch.empty(0))
        for _ in attack.work(seen):
            pass
        (clue,) = attack.clues
        columns = clue.values.reshape(COUNT, -1).T
        assert len(columns) == count
        each = [roc_auc_score(labels, scores) for scores in columns]
        results[clue.figure] = max(max(one, 1 - one) for one in each)
    assert results["auc"] < 0.62
    assert results["best_auc"] > 0.99


def test_chance_of_the_best_of_five_is_above_that_of_one():
    import numpy as np

    positive = np.arange(100) % 2 == 0
    one, five = (simulate_chance_auc(positive, np.random.default_rng(0), n) for n in (1, 5))
    assert 0.53 < one.value < 0.56 < five.value < 0.62
    assert one.high < five.high
