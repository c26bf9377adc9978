"""A figure along an axis: its words, its unit, and an arrow to where it is better."""

import pandas as pd
import pytest

from simsplit.report.scatter import read_along


@pytest.mark.parametrize(
    ("name", "value", "drawn", "label"),
    [
        ("test_accuracy", 0.5, 50, "test accuracy, %   (better →)"),
        ("test_loss", 0.5, 0.5, "test loss   (← better)"),
        ("test_rouge_l", 0.5, 0.5, "test rouge l   (better →)"),
        ("attack_success", 0.5, 50, "attack success, %   (← better)"),
        ("bytes_total", 2**20, 1, "bytes sent, MiB   (← better)"),
        ("bytes_total", 2**34, 16, "bytes sent, GiB   (← better)"),
        ("bytes_ratio", 0.5, 0.5, "bytes ratio   (← better)"),
        ("seconds", 3, 3, "seconds   (← better)"),
        ("round", 3, 3, "round"),
    ],
)
def test_an_axis_says_what_in_which_unit_and_where_better_is(name, value, drawn, label):
    table = pd.DataFrame({f"{name}_mean": [value], f"{name}_std": [float("nan")]})
    made = read_along(table, name)
    assert (made.means, made.deviations, made.label()) == ([drawn], [0], label)
    assert made.chance is None


def test_figures_on_one_axis_have_the_unit_of_the_largest():
    table = pd.DataFrame({"bytes_up_mean": [2**34], "bytes_down_mean": [2**33]})
    table = table.assign(bytes_up_std=0.0, bytes_down_std=0.0)
    made = read_along(table, "bytes_down", ["bytes_up", "bytes_down"])
    assert (made.means, made.unit) == ([8], ", GiB")


def test_a_leak_knows_chance():
    columns = {"labels_leak_mean": [0.9, 0.8], "labels_leak_std": [0.01, 0.02]}
    made = read_along(pd.DataFrame({**columns, "labels_chance_mean": [0.55, 0.52]}), "labels_leak")
    assert made.chance == pytest.approx((52, 55))
    assert made.deviations == pytest.approx([1, 2])
    mixed = read_along(pd.DataFrame({**columns, "labels_chance_mean": [0.55, 0.25]}), "labels_leak")
    assert mixed.chance is None, "of different tasks"
