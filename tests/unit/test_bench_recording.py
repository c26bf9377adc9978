"""The bench of recording compares equal loops, of which one is recorded."""

from benches.recording import measure_recording

from simsplit.bench.overhead import SIMPLE, OverheadCase


def test_both_loops_learn_the_same_and_one_is_recorded() -> None:
    case = OverheadCase("small", SIMPLE, 16, [], 1.05, 20)
    ((table, figures),) = measure_recording("cpu", True, lambda said: None, [case])
    measured = figures["small"]
    steps = measured["steps"]
    assert steps == 2 * 4  # a block to warm up, and three pairs
    cut = 16 * 20 * 12 * 12 * 4
    assert measured["recorded_bytes"] > 2 * steps * cut, "the head's outputs and their gradients"
    assert [row[0] for row in table.rows] == ["small"]
