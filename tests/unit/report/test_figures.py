"""Figures show what the tables say."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from builders import run_to_end, scenario

from simsplit.errors import RunError
from simsplit.report import figures
from simsplit.results import Run

mpl.use("agg")
SIGN = {"kind": "tamper", "how": "sign", "strength": 1.0}
DETECTORS = ["cosine_payload", "krum_payload"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    path: Path = tmp_path_factory.mktemp("figures")
    made = {}
    for name, fraction in (("attacked", 0.2), ("clean", 0.0)):
        malicious = {"fraction": fraction, "poison": [SIGN, {"kind": "badnets"}]}
        given = scenario(
            clients={"count": 5, "malicious": malicious},
            detectors=[{"kind": "cosine_mad"}, {"kind": "krum"}, {"kind": "within_class"}],
        )
        run_to_end(given, path / name)
        made[name] = Run.load(path / name)
    return made


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.slow
def test_a_signal_has_a_line_a_client_and_the_malicious_one_is_red(runs: dict[str, Run]):
    run = runs["attacked"]
    lines = {line.get_color(): line for line in figures.signal(run, "cosine_payload").lines}
    table = run.clients
    bad = table[table["malicious"] == 1]
    red = lines[figures.MALICIOUS]
    assert np.allclose(red.get_ydata(), bad["cosine_payload_z"])
    assert len(figures.signal(run, "cosine_payload", z=False).lines) == 5
    reds = [line.get_color() for line in figures.signal(runs["clean"], "cosine_payload").lines]
    assert figures.MALICIOUS not in reds


def test_a_detector_that_the_run_has_not_is_refused_with_the_ones_that_it_has(runs: dict[str, Run]):
    for draw in (figures.signal, lambda run, name: figures.roc([run], [name])):
        with pytest.raises(RunError, match=r"'cosine'.*'cosine_payload'"):
            draw(runs["clean"], "cosine")


def test_what_a_run_has_not_is_refused_in_words(runs: dict[str, Run]):
    clean = {"clean": runs["clean"]}
    for draw, message in [
        (lambda: figures.signal(runs["clean"], "nonsense"), "it has cosine_payload and krum_payl"),
        (lambda: figures.signal(runs["clean"], "nonsense", z=False), "it has cosine_payload and"),
        (lambda: figures.caught(clean, ["nonsense"]), "it has cosine_payload and krum_payload"),
        (lambda: figures.against({1.0: runs["clean"]}, ["nonsense"]), "it has cosine_payload"),
        (lambda: figures.accuracy(clean, figure="test_acuracy"), "'test_accuracy'"),
        (lambda: figures.accuracy(clean, x="nonsense"), "in rounds.csv; it has round, phase"),
        (lambda: figures.read(clean, "rouge"), "'rouge'"),
    ]:
        with pytest.raises(RunError, match=re.escape(message)):
            draw()


def test_roc_says_how_well_each_ranks(runs: dict[str, Run]):
    ax = figures.roc([runs["attacked"]], DETECTORS)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    auroc = runs["attacked"].detections.set_index(["round", "detector"])["auroc"]
    assert labels == [f"{name} ({auroc[2, name]:.2f})" for name in DETECTORS]


def test_far_away_on_the_side_that_a_detector_does_not_look_to_nobody_is_suspicious(
    runs: dict[str, Run],
):
    """Of scores within a class, high ones are suspicious; an honest client lies lowest here."""
    run = Run.load(runs["attacked"].path)
    table = run.clients.copy()
    last = table["round"] == table["round"].max()
    table.loc[last, "within_class_payload_z"] = table["malicious"].map({1: 3.0, 0: 0.0})
    table.loc[table[last & (table["malicious"] == 0)].index[0], "within_class_payload_z"] = -9.0
    run.__dict__["clients"] = table
    _, labels = figures.roc([run], ["within_class_payload"]).get_legend_handles_labels()
    assert labels == ["within_class_payload (1.00)"]


def test_caught_says_f1_and_false_alarms(runs: dict[str, Run]):
    ax = figures.caught(runs, DETECTORS)
    f1 = runs["attacked"].detections.set_index(["round", "detector"])["f1"]
    flagged = runs["clean"].detections.set_index(["round", "detector"])["flagged"]
    expected = [f"{f1[2, name]:.2f}" for name in DETECTORS]
    expected += [f"{flagged[2, name]} flagged" for name in DETECTORS]
    assert [text.get_text() for text in ax.texts] == expected


def test_bytes_add_up(runs: dict[str, Run]):
    ax = figures.bytes_by_leg(runs)
    tops = max(patch.get_y() + patch.get_height() for patch in ax.patches)
    assert tops == pytest.approx(runs["attacked"].summary["bytes"]["total"] / 2**20)


def test_curves_are_the_tables(runs: dict[str, Run]):
    lines = figures.accuracy(runs, x="bytes_total").lines
    assert np.allclose(lines[0].get_ydata(), runs["attacked"].rounds["test_accuracy"])
    solid, dashed, *_ = figures.attack(runs).lines
    assert np.allclose(solid.get_ydata(), runs["attacked"].rounds["attack_success"])
    assert np.allclose(dashed.get_ydata(), runs["attacked"].rounds["test_accuracy"])


def test_over_a_setting(runs: dict[str, Run]):
    bad, honest = figures.against({1.0: runs["attacked"]}, DETECTORS[:1], xlabel="alpha").lines
    last = runs["attacked"].clients.query("round == 2")
    away = last["cosine_payload_z"].abs()
    assert bad.get_ydata() == pytest.approx(away[last["malicious"] == 1].min())
    assert honest.get_ydata() == pytest.approx(away[last["malicious"] == 0].max())


def test_a_dozen_lines_differ_in_colour_and_mark_and_pictures_have_titles(finished_run):
    ax = figures.accuracy({f"run {number}": finished_run for number in range(12)})
    looks = {(line.get_color(), line.get_marker()) for line in ax.lines}
    assert len(looks) == len({colour for colour, _ in looks}) == 12
    assert ax.get_title()
    legend, axes = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 >= axes.x1, "a legend hides no line"


def have_room(artists) -> bool:
    """Return whether no two texts of a drawn figure overlap."""
    figure = artists[0].figure
    figure.canvas.draw()
    boxes = [each.get_window_extent() for each in artists if each.get_text()]
    pairs = itertools.combinations(boxes, 2)
    return not any(one.overlaps(other) for one, other in pairs)


def test_numbers_of_bytes_have_room_in_half_a_figure():
    table = pd.DataFrame({"bytes_total": np.linspace(4, 61, 8) * 2**20, "test_accuracy": 0.5})
    made = {"raw": SimpleNamespace(rounds=table)}
    _, (_, right) = plt.subplots(1, 2, figsize=(9, 4))
    assert have_room(figures.accuracy(made, x="bytes_total", ax=right).get_xticklabels())
    assert right.get_xlabel() == "bytes total, MiB"
    assert all(float(each.get_text()) % 10 == 0 for each in right.get_xticklabels())


def test_cells_of_many_detectors_have_room(monkeypatch):
    names = [f"cosine_payload_{place}" for place in range(14)]
    monkeypatch.setattr(figures, "_refuse_unknown", lambda *_: None)
    monkeypatch.setattr(figures, "_score", lambda *_: (0.5, "2 flagged"))
    assert have_room(figures.caught({"clean": None, "skewed": None}, names).texts)
