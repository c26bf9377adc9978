"""A run leaves pictures of itself, and none of them can cost it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import run_to_end, scenario
from PIL import Image
from written_leaks import write_leaks

from simsplit.progress import Observer
from simsplit.report import figures, input_figures
from simsplit.report.detections import find_cut, list_detectors
from simsplit.report.input_figures import draw_recovered
from simsplit.report.rates import choose_headline
from simsplit.report.run_figures import (
    draw_figures,
    draw_holdings,
    draw_learning_curve,
    draw_signals,
)
from simsplit.results import Run, RunWriter

DRAWN = {"output": {"figures": True}}
WATCHED = {
    "clients": {
        "count": 5,
        "malicious": {"fraction": 0.2, "poison": [{"kind": "tamper", "how": "sign"}]},
    },
    "detectors": [
        {"kind": "cosine_mad"},
        {"kind": "krum", "threshold": {"kind": "calibrated", "fpr": 0.05}},
        {"kind": "safesplit", "threshold": {"kind": "fixed", "above": 2.5}},
        {"kind": "foolsgold", "threshold": {"kind": "sequential"}},
    ],
    "schedule": {"kind": "per_client", "rounds": 2},
}


class Ear(Observer):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, message: str) -> None:
        self.warned.append(message)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("drawn") / "run"
    run_to_end(scenario(**WATCHED, **DRAWN), path)
    return Run.load(path)


def test_a_watched_run_leaves_curves_bytes_and_signals(watched: Run) -> None:
    drawn = {file.name for file in (watched.path / "figures").iterdir()}
    assert drawn == {"learning_curve.png", "bytes_by_leg.png", "holdings.png", "signals.png"}
    for name in drawn:
        with Image.open(watched.path / "figures" / name) as image:
            assert len(image.convert("L").getcolors(256) or range(256)) > 5, "something is on it"


def test_a_panel_shows_the_detectors_own_threshold(watched: Run) -> None:
    cosine, krum, safesplit, foolsgold = list_detectors(watched)
    cuts = {name: find_cut(watched, name) for name in list_detectors(watched)}
    assert cuts[foolsgold] is None, "its z is a mean over rounds, which no table has"
    assert cuts[cosine] is not None
    assert cuts[cosine].lines == (-3.0, 3.0), "either side is suspicious"
    assert cuts[krum] is not None
    (line,) = cuts[krum].lines
    assert 2 < line < 6
    assert cuts[safesplit] is not None
    assert (cuts[safesplit].lines, cuts[safesplit].of_scores) == ((2.5,), True)
    drawn = draw_signals(watched)
    assert drawn is not None
    ax = drawn.axes[1]
    dotted = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"]
    assert dotted == [line]
    colours = [each.get_color() for each in ax.lines if each.get_linestyle() == "-"]
    assert sorted(colours) == sorted([figures.HONEST] * 4 + [figures.MALICIOUS])
    (ring,) = ax.collections
    assert len(ring.get_offsets()) == watched.clients[f"{krum}_flagged"].sum()


def test_a_drawn_threshold_is_that_of_the_clients_that_are_not_trusted(tmp_path: Path) -> None:
    """Of 8 clients 3 are trusted: 5 were judged."""
    threshold = {"kind": "calibrated", "fpr": 0.05}
    root = {"kind": "root_cosine", "root": [0, 1, 2], "threshold": threshold}
    given = scenario(clients={"count": 8}, detectors=[root])
    (config,) = given.detectors
    column = f"{config.title}_z"
    writer = RunWriter(tmp_path / "run", {"rounds": ["round"], "clients": ["round", column]})
    writer.start(given.yaml(), {})
    writer.append("rounds", [{"round": 1}])
    writer.append("clients", [{"round": 1, column: 0.5} for _ in range(8)])
    drawn = find_cut(Run.load(writer.path), config.title)
    assert drawn is not None
    assert drawn.value == config.threshold.cut(5, config.side, 1)
    assert drawn.value != config.threshold.cut(8, config.side, 1)


@pytest.mark.slow
def test_what_cannot_be_drawn_is_a_warning_and_the_run_has_finished(tmp_path: Path) -> None:
    path, ear = tmp_path / "run", Ear()
    path.mkdir()
    (path / "figures").write_text("a file where the folder would be")
    from simsplit import run

    run(scenario(**DRAWN), path, observers=[ear])
    assert Run.load(path).summary["status"] == "finished"
    assert len(ear.warned) == 3
    assert "figures/learning_curve.png" in ear.warned[0]


def test_a_scenario_may_have_none_drawn(tmp_path: Path) -> None:
    run_to_end(scenario(output={"figures": False}), tmp_path / "run")
    assert not (tmp_path / "run" / "figures").exists()


def test_the_curve_is_of_what_the_task_is_judged_by(watched: Run) -> None:
    rounds = watched.rounds
    assert choose_headline(watched) == "accuracy"
    text = Run(watched.path)
    text.rounds = rounds.assign(test_answers=0.5, test_perplexity=9.0)
    assert choose_headline(text) == "answers"
    text.rounds = rounds.drop(columns=["test_accuracy", "validation_accuracy"], errors="ignore")
    assert choose_headline(text) == "balanced_accuracy"
    bare = [name for name in rounds if not name.startswith(("test_", "validation_"))]
    text.rounds = rounds[bare]
    assert choose_headline(text) is None
    assert draw_learning_curve(text) is None


@pytest.mark.slow
def test_figures_are_drawn_without_pyplot(watched: Run) -> None:
    """A window system, or a notebook's backend, must have no part in them."""
    code = (
        "import sys; from simsplit.results import Run; "
        "from simsplit.report.run_figures import draw_figures; "
        f"print(draw_figures(Run.load({str(watched.path)!r})), 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
    assert draw_figures(watched) == []


def test_who_holds_what_is_a_bar_a_client(watched: Run) -> None:
    figure = draw_holdings(watched)
    assert figure is not None
    (ax,) = figure.axes
    bars = zip(*ax.containers, strict=True)
    ends = [max(bar.get_x() + bar.get_width() for bar in row) for row in bars]
    assert ends == watched.holdings.groupby("client")["samples"].sum().tolist()


def test_images_of_attacks_on_a_finished_run_alone_are_no_failure(variant: Any) -> None:
    run = variant("later")
    folder = run.path / "attacks" / "later"
    folder.mkdir(parents=True)
    row = {"round": 1, "attack": "later", "target": 0, "mse": 0.5}
    write_leaks(folder, "images", [row])
    assert draw_recovered(Run.load(run.path)) is None


@pytest.mark.parametrize("attacks", [1, 13])
def test_the_title_of_recovered_images_is_near_the_first_row(monkeypatch, attacks):
    rows = ("originals", *(f"attack {number}" for number in range(attacks)))
    images = {name: np.zeros((2, 1, 4, 4), np.uint8) for name in rows}
    monkeypatch.setattr(input_figures, "load_images", lambda *_: images)
    figure = input_figures.recovered(Path("a run"), rows[1:])
    figure.canvas.draw()
    title = figure.texts[0].get_window_extent()
    assert 0 < title.y0 - figure.axes[0].get_window_extent().y1 < 0.2 * figure.dpi
    assert title.y1 <= figure.bbox.y1
