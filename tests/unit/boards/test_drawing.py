"""Test the picture of a board."""

from planted_boards import measure_at, plant

from simsplit.boards.drawing import draw_board


def test_the_picture_ends_around_the_means():
    """Student's interval of three seeds that differ much is wider than any share can be."""
    board = plant(
        {"none": ["none"], "wild": ["wild"]},
        {
            "none": measure_at(90, 1.0),
            "wild": {**measure_at(80, 0.6, seeds=(-9, 0, 9)), "leaks_one": [0.2, 0.6, 1.0]},
        },
    )
    (ax,) = draw_board(board).axes
    for (low, high), means in ((ax.get_xlim(), (80, 90)), (ax.get_ylim(), (0, 1))):
        span = max(means) - min(means)
        assert min(means) - 0.2 * span <= low < min(means)
        assert max(means) < high <= max(means) + 0.2 * span
