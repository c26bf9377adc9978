"""What a figure's values can be refuses statements that no measurement could settle."""

import math

import pytest

from simsplit.evidence.measures import Measure, find_flaw, find_measure
from simsplit.evidence.statements import parse_statement

SHARE = Measure(0, 1)


@pytest.mark.parametrize(
    ("text", "is_flawed"),
    [
        ("a <= 0", True),  # at the edge of the range alone
        ("a < 0", True),
        ("a >= 1", True),
        ("a > 1", True),
        ("a < 1.2", True),  # whatever is measured
        ("a >= 0", True),
        ("a - b <= 1", True),
        ("a - b > 1", True),
        ("a - b ~ 0 within 1", True),
        ("a ~ 2 within 0.5", True),
        ("a < 0.5", False),
        ("a >= 0.99", False),
        ("a > b", False),
        ("a - b <= 0.4", False),
        ("a / b >= 0.95", False),
        ("a * b < 0.5", False),
        ("a ~ 0.9 within 0.5", False),
    ],
)
def test_a_bound_that_a_share_cannot_pass_or_always_passes_is_named(text, is_flawed):
    (comparison,) = parse_statement(text, ("a", "b"), "holds")
    assert bool(find_flaw(comparison, {"a": SHARE, "b": SHARE})) == is_flawed


def test_a_ratio_of_bytes_is_above_nought():
    (comparison,) = parse_statement("a / b < 0", ("a", "b"), "holds")
    assert find_flaw(comparison, dict.fromkeys("ab", find_measure("bytes_smashed")))
    (comparison,) = parse_statement("a / b ~ 8 within 0.1", ("a", "b"), "holds")
    assert not find_flaw(comparison, dict.fromkeys("ab", find_measure("bytes_smashed")))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("test_accuracy", 0, 1),
        ("cosine_features_f1", 0, 1),
        ("safesplit_fpr", 0, 1),
        ("pidi_ap_both", 0, 1),
        ("sessions_mp", 0, 1),
        ("labels_features_leak", 0, 1),
        ("sdar_ssim", -1, 1),
        ("unsplit_fg_mse", 0, math.inf),
        ("bytes_total", 0, math.inf),
        ("cosine_features_z_malicious", -math.inf, math.inf),
    ],
)
def test_the_range_of_a_figure_follows_from_its_name(name, low, high):
    measure = find_measure(name)
    assert (measure.low, measure.high) == (low, high)
    assert find_measure(name).scale(100).high == 100 * high


def test_a_measure_is_scaled_whole():
    scaled = Measure(0, 1, 0.01, trials=5).scale(100)
    assert scaled == Measure(0, 100, 1.0, trials=5, whole=100)
