"""Settings by two figures: who is on the front, and that names can be read."""

import re

import matplotlib as mpl
import pytest

from simsplit.errors import RunError
from simsplit.report.grouping import Entry, names_of
from simsplit.report.scatter import front, scatter

mpl.use("agg")


@pytest.fixture
def entries(variant):
    """Five batch sizes, two seeds each: (accuracy, MiB)."""
    made = []
    for size, accuracy, mib in [
        (8, 0.9, 10),
        (16, 0.8, 5),
        (32, 0.7, 8),
        (64, 0.6, 2),
        (9, 0.9, 9),
    ]:
        for seed, off in ((0, -0.01), (1, 0.01)):
            fields = {"seed": seed, "train": {"batch_size": size}, "name": "same"}
            scores = {"test_accuracy": accuracy + off}
            made.append(Entry(variant(f"{size}-{seed}", fields, scores, total=mib * 2**20)))
    return made


@pytest.mark.parametrize(
    ("ways", "kept"),
    [
        (("less", "more"), [3, 1, 4]),
        (("more", "more"), [0]),
        (("less", "less"), [3]),
        (("more", "less"), [3, 2, 0]),
    ],
)
def test_the_front_is_who_nobody_beats(ways, kept):
    points = [(10, 0.9), (5, 0.8), (8, 0.7), (2, 0.6), (9, 0.9)]
    assert front(points, ways) == kept
    assert front([(1.0, 1.0), (1.0, 1.0)], ("more", "more")) == [0, 1], "twins beat nobody"


def test_a_point_per_setting_and_the_legend_says_which_way_is_better(entries):
    names = names_of(entries)
    drawn = scatter(entries, "bytes_total,test_accuracy", "best_on_validation", names)
    (ax,) = drawn.axes
    points, line = ax.lines[0], ax.lines[-1]
    assert points.get_xdata().tolist() == pytest.approx([10, 5, 8, 2, 9])
    assert points.get_ydata().tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.9])
    assert list(line.get_xdata()) == [2, 5, 9]
    told = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "Pareto front: less bytes_total and more test_accuracy are better" in told
    assert [text.get_text() for text in ax.texts if text.get_text()] == names
    assert names[0] == "batch_size 8"


def test_names_stand_apart_even_where_points_do_not(variant):
    runs = [
        Entry(variant(f"r{size}", {"train": {"batch_size": size}, "name": "same"}, total=2**20))
        for size in range(8, 20)
    ]
    drawn = scatter(runs, "bytes_total,test_accuracy", "last", names_of(runs))
    (ax,) = drawn.axes
    renderer = drawn.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in ax.texts if text.get_text()]
    assert len(boxes) == 12
    for index, box in enumerate(boxes):
        assert not [other for other in boxes[:index] if box.overlaps(other)]


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (
            "bytes_totl,test_accuracy",
            "--plot: unknown 'bytes_totl', did you mean 'bytes_total'? allo",
        ),
        ("bytes_total,accuracy", "--plot: unknown 'accuracy', did you mean 'test_accuracy'?"),
        ("bytes_total", "--plot takes X,Y, got 'bytes_total'; allowed: round, "),
    ],
)
def test_an_unknown_figure_is_answered_with_those_that_there_are(entries, pair, said):
    with pytest.raises(RunError, match=re.escape(said)):
        scatter(entries, pair, "last", names_of(entries))


def test_without_a_known_way_there_is_no_front(entries):
    drawn = scatter(entries, "round,test_accuracy", "last", names_of(entries))
    told = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert "no Pareto front: neither way is better of round" in told
