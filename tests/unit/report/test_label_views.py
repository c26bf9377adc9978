"""What pictures of labels show: which adapter, which way round, and what lies on one line."""

import numpy as np
import pandas as pd
import pytest

from simsplit.report.label_views import (
    _separate_lanes,
    find_leaks_by_view,
    make_strips,
    name_classes,
    read_chance,
)


def test_a_strip_for_each_view_gradients_first_with_the_adapter_that_leaks_most(with_labels):
    strips = make_strips(with_labels())
    pairs = [(strip.view, strip.adapter) for strip in strips]
    assert pairs == [("gradient", 1), ("features", 0)]
    assert strips[0].words == "gradients of features\nadapter 1"
    assert [panel.round for panel in strips[0].panels] == [1, 2]
    assert [panel.leak for panel in strips[0].panels] == [0.75, 1.0]
    assert [panel.leak for panel in strips[1].panels] == [0.75, 0.75], "purity is no leak"


def test_a_component_keeps_its_sign_from_one_judgement_to_the_next(with_labels):
    first, second = make_strips(with_labels())[1].panels
    for name in "xy":
        assert first.points[name].tolist() == second.points[name].tolist()


def test_labels_have_lanes_where_all_targets_lie_on_one_line(with_labels):
    gradients, features = make_strips(with_labels())
    points = gradients.panels[0].points
    assert points["x"].tolist() == [-1.5, -0.5, 0.5, 1.5]
    zero, one = (points.loc[points["label"] == label, "y"] for label in (0, 1))
    assert zero.max() < one.min()
    assert features.panels[0].points["y"].tolist() == [-0.5, 0.5, -0.5, 0.5]


def test_the_frame_holds_all_points_and_is_not_flatter_than_can_be_seen(with_labels):
    for strip in make_strips(with_labels()):
        left, right, low, high = strip.panels[0].frame
        points = strip.panels[0].points
        assert left < points["x"].min() < points["x"].max() < right
        assert low < points["y"].min() < points["y"].max() < high
        assert high - low > 0.35 * (right - left)


def test_classes_chance_and_leaks_are_those_of_the_tables(with_labels, finished_run):
    run = with_labels()
    assert name_classes(run, make_strips(run)) == {0: "0", 1: "1"}
    assert read_chance(run) == pytest.approx(0.55)
    assert find_leaks_by_view(run)[2, "gradient", 1] == 1.0
    assert make_strips(finished_run) == []
    assert find_leaks_by_view(finished_run) == {}
    assert read_chance(finished_run) is None


def test_a_line_with_a_few_targets_off_it_is_still_one():
    """Two places, of 100 targets of both labels each, which would hide one another."""
    places = np.repeat([-1.0, 1.0], 100)
    off = np.where(np.arange(200) < 2, 0.02, 0.0)
    given = pd.DataFrame({"x": places, "y": off, "label": [0, 1] * 100, "target": range(200)})
    zero, one = (_separate_lanes(given).query("label == @label")["y"] for label in (0, 1))
    assert zero.max() < one.min()
    plane = given.assign(y=np.arange(200.0))
    assert _separate_lanes(plane).equals(plane)
