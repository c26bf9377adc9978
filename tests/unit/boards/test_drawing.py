"""Test the picture of a board."""

from planted_boards import measure_at, plant

from simsplit.boards.board_drawing import draw_board


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


def test_what_crowds_near_the_undefended_run_has_a_panel_of_its_own():
    near = {name: measure_at(88 + 0.3 * x, 0.5) for x, name in enumerate("abc")}
    rows = {"none": measure_at(90, 1.0), **near, "far": measure_at(70, 0.1)}
    board = plant({name: [name] for name in rows}, rows)
    _, closer = draw_board(board).axes
    low, high = closer.get_xlim()
    assert 70 < low < 88
    assert 90 < high < 92


def test_one_panel_is_enough_where_nothing_crowds():
    rows = {"none": measure_at(90, 1.0), "a": measure_at(80, 0.5), "far": measure_at(70, 0.1)}
    draw(rows)
    draw({name: measure_at(88 + x, 0.5) for x, name in enumerate(["a", "b", "none", "c", "d"])})
