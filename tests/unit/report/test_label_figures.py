"""Pictures of what attacks on labels saw and inferred, of one run and of several."""

import matplotlib as mpl
import pytest

from simsplit.errors import RunError
from simsplit.report.label_figures import components, labels_seen, leak

mpl.use("agg")


def test_a_panel_for_each_view_and_judgement_with_its_leak(with_labels):
    figure = labels_seen(with_labels())
    assert [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()] == [
        "gradients of features\nadapter 1",
        "features\nadapter 0",
    ]
    assert [ax.get_title() for ax in figure.axes][:2] == ["round 1", "round 2"]
    corners = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert corners == ["75 %", "100 %", "75 %", "75 %"]
    colours = figure.axes[0].collections[0].get_facecolors()
    assert len({tuple(colour) for colour in colours}) == 2, "a colour a class"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0", "1"]
    assert "(chance 55 %)" in figure.texts[-1].get_text()


def test_a_run_that_nobody_looked_at_has_no_picture(finished_run):
    assert labels_seen(finished_run) is None


def test_a_row_a_run_of_the_view_that_is_asked_for(with_labels):
    runs = {name: with_labels(name) for name in ("regular", "private")}
    figure = components(runs, "features")
    rows = [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()]
    assert rows == ["regular\nfeatures\nadapter 0", "private\nfeatures\nadapter 0"]
    with pytest.raises(RunError, match=r"'gradients'.*'gradient'"):
        components(runs, "gradients")


def test_the_worst_leak_over_rounds_and_chance(with_labels):
    ax = leak({"regular": with_labels()})
    assert ax.lines[0].get_xdata().tolist() == [1, 2]
    assert ax.lines[0].get_ydata().tolist() == [75, 100]
    assert ax.lines[1].get_ydata() == pytest.approx([55, 55])
