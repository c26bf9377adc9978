"""Intervals of means: by Student's table, and of values that are no numbers."""

import math

import pytest

from simsplit.metrics.intervals import compute_half_width


def test_three_values_have_the_width_of_students_table() -> None:
    # t of 97.5 % with 2 degrees of freedom is 4.303; the deviation is 1
    assert compute_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert compute_half_width([2.0]) is None


def test_values_that_are_no_numbers_have_no_width() -> None:
    for odd in (math.nan, math.inf):
        width = compute_half_width([1.0, odd])
        assert width is not None
        assert math.isnan(width)
