"""Test the picture of a board."""

from planted_boards import measure_at, plant

from simsplit.boards.drawing import draw_board


def draw(strengths):
    (ax,) = draw_board(plant({name: [name] for name in strengths}, strengths)).axes
    return ax


def test_the_picture_ends_around_the_means():
    """Student's interval of three seeds that differ much is wider than any share can be."""
    wild = {**measure_at(80, 0.6, seeds=(-9, 0, 9)), "leaks_one": [0.2, 0.6, 1.0]}
    ax = draw({"none": measure_at(90, 1.0), "mild": measure_at(85, 0.5), "wild": wild})
    for (low, high), means in ((ax.get_xlim(), (80, 90)), (ax.get_ylim(), (0, 1))):
        span = max(means) - min(means)
        assert min(means) - 0.2 * span <= low < min(means)
        assert max(means) < high <= max(means) + 0.2 * span


def test_intervals_of_utility_that_all_have_are_seen_whole():
    """Else a difference inside the spread looks like one."""
    ax = draw(
        {name: measure_at(90 + x, 0.5, seeds=(-1, 0, 1)) for x, name in enumerate(["none", "a"])}
    )
    low, high = ax.get_xlim()
    assert low < 90 - 2.48
    assert high > 91 + 2.48
