"""Settings by two figures: what an axis says, who is on the front, and that names can be read."""

import matplotlib as mpl
import pandas as pd
import pytest
from gists import gist, says
from matplotlib.collections import LineCollection
from matplotlib.transforms import Bbox
from pace import together
from written_leaks import write_leaks

from simsplit.errors import RunError
from simsplit.report.grouping import Entry, name_rows
from simsplit.report.scatter import find_front, read_along, scatter
from simsplit.results import Run

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
    assert find_front(points, ways) == kept
    assert find_front([(1.0, 1.0), (1.0, 1.0)], ("more", "more")) == [0, 1], "twins beat nobody"


def test_a_point_per_setting_in_the_axes_units_and_the_front_in_steps(entries):
    names = name_rows(entries)
    drawn = scatter(entries, "bytes_total,test_accuracy", "best_on_validation", names)
    (ax,) = drawn.axes
    points = [each.lines[0] for each in ax.containers]
    assert [line.get_xdata()[0] for line in points] == pytest.approx([10, 5, 8, 2, 9])
    assert [line.get_ydata()[0] for line in points] == pytest.approx([90, 80, 70, 60, 90])
    filled = [line.get_markerfacecolor() != "white" for line in points]
    assert filled == [False, True, False, True, True]
    line = ax.lines[0]
    assert list(line.get_xdata()) == [2, 5, 5, 9, 9]
    assert list(line.get_ydata()) == pytest.approx([60, 60, 80, 80, 90])
    assert ax.get_xlabel() == "bytes sent, MiB   (← better)"
    assert ax.get_ylabel() == "test accuracy, %   (better →)"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Pareto front (filled)"]
    assert [text.get_text() for text in ax.texts if text.get_text()] == names
    assert names[0] == "batch_size 8"


def test_a_method_in_several_strengths_has_a_colour_of_its_own(variant):
    methods = [[], *([{"kind": "quantise", "bits": bits}] for bits in (2, 4))]
    runs = [Entry(variant(f"r{n}", {"method": method})) for n, method in enumerate(methods)]
    (ax,) = scatter(runs, "bytes_total,test_accuracy", "last", name_rows(runs)).axes
    colours = [each.lines[0].get_color() for each in ax.containers]
    assert colours[1] == colours[2] != colours[0]
    labels = {text.get_text() for text in ax.get_legend().get_texts()}
    assert labels == {"raw", "quantise", "Pareto front (filled)"}


def test_a_leak_stands_beside_what_chance_tells(variant):
    run = variant("attacked")
    place = {"round": 1, "view": "features", "adapter": 0, "metric": "auc"}
    place |= {"low": 0.1, "high": 0.9, "samples": 9, "known": 0}
    read = (("spectral", 0.9), ("chance", 0.55))
    write_leaks(run.path, "labels", [{**place, "attack": a, "value": v} for a, v in read])
    entries = [Entry(Run.load(run.path))]
    (ax,) = scatter(entries, "labels_leak,test_accuracy", "last", name_rows(entries)).axes
    assert says(ax.get_xlabel(), "labels ... % ... (← better)")
    assert ax.containers[0].lines[0].get_xdata()[0] == pytest.approx(90)
    (chance,) = ax.patches
    assert (chance.get_x(), chance.get_width()) == pytest.approx((55, 0))


def test_names_stand_apart_even_where_points_do_not(variant):
    runs = [
        Entry(variant(f"r{size}", {"train": {"batch_size": size}, "name": "same"}, total=2**20))
        for size in range(8, 20)
    ]
    drawn = scatter(runs, "bytes_total,test_accuracy", "last", name_rows(runs))
    (ax,) = drawn.axes
    renderer = drawn.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in ax.texts if text.get_text()]
    assert len(boxes) == 12
    for index, box in enumerate(boxes):
        assert not [other for other in boxes[:index] if box.overlaps(other)]


def test_no_interval_goes_through_a_name(entries):
    drawn = scatter(entries, "test_accuracy,bytes_total", "last", name_rows(entries))
    (ax,) = drawn.axes
    renderer = drawn.canvas.get_renderer()
    names = [text.get_window_extent(renderer) for text in ax.texts if text.get_text()]
    bars = [
        Bbox.from_extents(*ends[0] - 0.5, *ends[1] + 0.5)
        for each in ax.collections
        if isinstance(each, LineCollection)
        for ends in map(ax.transData.transform, each.get_segments())
    ]
    assert sum(bar.width > 20 for bar in bars) == len(names) == 5
    assert not any(bar.overlaps(name) for bar in bars for name in names)


@together(
    [
        (
            "bytes_totl,test_accuracy",
            "--plot: ... 'bytes_totl' ... 'bytes_total'",
        ),
        ("bytes_total,accuracy", "--plot: ... 'accuracy' ... 'test_accuracy'"),
        (
            "bytes_total,test_accuracy,round",
            "swept field ... bytes_total",
        ),
        ("batch_size,test_accuracy,bytes_total", "no unit"),
        ("bytes_total", "--plot takes X,Y, got 'bytes_total'; allowed: round, "),
    ]
)
def test_an_unknown_figure_is_answered_with_the_known_ones(case, entries):
    pair, message = case
    with pytest.raises(RunError, match=gist(message)):
        scatter(entries, pair, "last", name_rows(entries))


def test_without_a_known_way_there_is_no_front(entries):
    drawn = scatter(entries, "round,test_accuracy", "last", name_rows(entries))
    labels = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert any(says(text, "no Pareto front: ... round") for text in labels)


def test_a_swept_field_is_an_axis_and_a_line_a_method(variant):
    light = [{"kind": "lightsplit", "ratio": 8}]
    made = [
        Entry(variant(f"{size}-{len(method)}", {"train": {"batch_size": size}, "method": method},
                      {"test_accuracy": score}))
        for method, scores in (([], (0.9, 0.8, 0.7)), (light, (0.6, 0.5, 0.4)))
        for size, score in zip((32, 8, 16), scores, strict=True)
    ]  # fmt: skip
    for name in ("batch_size", "train.batch_size"):
        ax = scatter(made, f"{name},test_accuracy", "last", name_rows(made)).axes[0]
        lines = [line for line in ax.lines if len(line.get_xdata()) == 3]
        points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines]
        assert points == [
            [(8, 80), (16, pytest.approx(70)), (32, 90)],
            [(8, 50), (16, 40), (32, 60)],
        ]
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        assert legend == ["raw", "lightsplit 8"]
        assert ax.get_xlabel() == "batch size"


def test_several_figures_over_a_swept_field_have_a_line_each(variant):
    made = [
        Entry(variant(str(size), {"train": {"batch_size": size}},
                      {"one_ap_prompt": one, "mc_one_ap_prompt": other}))
        for size, one, other in ((16, 0.2, 0.5), (8, 0.1, 0.6))
    ]  # fmt: skip
    pair = "batch_size,one_ap_prompt,mc_one_ap_prompt"
    ax = scatter(made, pair, "last", name_rows(made)).axes[0]
    lines = [line for line in ax.lines if len(line.get_xdata()) == 2]
    points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines]
    assert points == [[(8, 0.1), (16, 0.2)], [(8, 0.6), (16, 0.5)]]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["one", "mc_one"]
    assert ax.get_ylabel().startswith("AP of prompts")


def test_no_two_methods_have_the_same_mark_and_colour(variant):
    kinds = ["noise", "topk", "sparsify", "quantise", "cast", "wcc", "max_norm", "dp_sgd", "nopeek"]
    made = [
        Entry(variant(f"{kind}-{seed}", {"method": [{"kind": kind}], "train": {"batch_size": size}},
                      {"test_accuracy": 0.5}))
        for kind in kinds for seed, size in ((0, 8), (1, 16))
    ]  # fmt: skip
    ax = scatter(made, "bytes_total,test_accuracy", "last", name_rows(made)).axes[0]
    handles, names = ax.get_legend_handles_labels()
    shown = {
        (h.get_marker(), h.get_color()) for h, n in zip(handles, names, strict=True) if n in kinds
    }
    assert len(shown) == len(kinds)


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_stands(entries):
    names = [f"$\\frac${number}" for number in range(len(name_rows(entries)))]
    drawn = scatter(entries, "bytes_total,test_accuracy", "best_on_validation", names)
    drawn.canvas.draw()
    written = {text.get_text().replace(r"\$", "$") for text in drawn.axes[0].texts}
    assert set(names) <= written


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
