"""How a board's figures are written."""

from simsplit.boards.tabulating import write_by_seed, write_leak_aside


def test_an_interval_that_leaves_the_scale_is_the_seeds_range():
    apart = {0: 0.0, 1: 0.1, 2: 0.9}
    assert " ± " in write_by_seed(apart, 2)
    assert write_by_seed(apart, 2, scale=(0, 1)) == "0.33 (0.00 to 0.90)"
    close = {0: 0.5, 1: 0.51, 2: 0.49}
    assert write_by_seed(close, 2, scale=(0, 1)) == write_by_seed(close, 2) == "0.50 ± 0.02"


def test_a_range_has_no_parentheses_within_others():
    assert write_leak_aside({0: 0.0, 1: 0.1, 2: 0.9}) == "0.33, 0.00 to 0.90"
    assert write_leak_aside({0: 0.5, 1: 0.51, 2: 0.49}) == "0.50 ± 0.02"
