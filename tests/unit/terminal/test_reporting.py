"""`simsplit report` writes a page and draws the figures anew."""

from pathlib import Path

import pytest
from builders import run_to_end, scenario
from gists import says


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_to_end(scenario(schedule={"rounds": 1}), tmp_path / "run")
    return tmp_path / "run"


def test_a_page_lies_in_the_run_directory_and_figures_are_drawn(simsplit, run):
    code, out, err = simsplit("report", "run")
    assert (code, out, err) == (0, "report: run/report.html\n", "")
    assert "<h1>tiny</h1>" in (run / "report.html").read_text()
    assert {file.name for file in (run / "figures").iterdir()} == {
        "learning_curve.png",
        "bytes_by_leg.png",
        "holdings.png",
    }


@pytest.mark.slow
def test_a_page_may_lie_elsewhere(simsplit, run, tmp_path):
    assert simsplit("report", "run", "--out", "pages/mine.html")[0] == 0
    assert (tmp_path / "pages" / "mine.html").exists()
    code, _, err = simsplit("report", "run", "--out", "run/scenario.yaml")
    assert (code, says(err, "error: --out ... .html ... 'run/scenario.yaml'")) == (2, True)
    code, _, err = simsplit("report", "run", "--out", "run/rounds.csv/x.html")
    assert code == 2
    assert err.startswith("error: cannot write run/rounds.csv/x.html: ")


def test_what_is_no_run_is_refused(simsplit, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = simsplit("report", "empty")
    assert code == 2
    assert says(err, "empty ... scenario.yaml")
