import io
import json
import time

import pytest
from builders import scenario
from rich.console import Console

from simsplit import load_sweep, run, run_sweep
from simsplit.progress import SweepObserver
from simsplit.results import read_progress
from simsplit.showing import sweep_output
from simsplit.showing.sweep_output import SweepLines, SweepLive, watch_sweep

CELLS = ["lr=0.1,seed=0", "lr=0.1,seed=1", "lr=0.2,seed=0"]


@pytest.fixture(autouse=True)
def in_colour(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)


def terminal(height=30, **options):
    return Console(file=io.StringIO(), width=100, height=height, **options)


def read_lines(console):
    return console.file.getvalue().splitlines()


@pytest.fixture
def wrote(tmp_path):
    """Puts into a cell's folder what a run writes."""

    def write(cell, rows, rounds=5):
        path = tmp_path / cell
        path.mkdir(exist_ok=True)
        (path / "summary.json").write_text(json.dumps({"status": "running", "rounds": rounds}))
        (path / "rounds.csv").write_text("\n".join(["round,train_loss,test_accuracy", *rows]))
        return path

    return write


def draw_live(live):
    """Draw the live table on paper of its own, as its thread draws on the other."""
    paper = terminal(color_system=None)
    paper.print(live.render())
    return paper.file.getvalue()


def test_who_watches_depends_on_where(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for console, quiet, kind in [
        (terminal(), False, SweepLines),
        (terminal(force_terminal=True), False, SweepLive),
        (terminal(force_terminal=True), True, SweepObserver),
        (terminal(force_terminal=True, no_color=True), False, SweepLines),
    ]:
        with watch_sweep(console, quiet=quiet) as watch:
            assert type(watch) is kind


def test_a_run_in_progress_is_read_up_to_its_last_whole_line(wrote, tmp_path):
    path = wrote("a", ["1,0.5,0.25", "2,0.4,", "3,0.3,0.9"])
    seen = read_progress(path)
    assert (seen.done, seen.rounds, seen.score) == (2, 5, 0.25)
    nothing = read_progress(tmp_path / "none")
    assert (nothing.done, nothing.rounds, nothing.score) == (0, None, None)


def test_a_line_as_a_cell_starts_and_one_as_it_ends(wrote, tmp_path):
    console = terminal()
    lines = SweepLines(console)
    lines.begin(tmp_path, CELLS, 2)
    lines.end_cell(CELLS[0], "kept")
    lines.start_cell(CELLS[1])
    wrote(CELLS[1], ["1,0.5,0.25", "5,0.4,0.875", ""])
    lines.end_cell(CELLS[1], "finished")
    lines.start_cell(CELLS[2])
    lines.warn("[odd]")
    lines.end_cell(CELLS[2], "failed", "no memory\nfrom here")
    assert read_lines(console)[0] == "3 cells, 2 at a time"
    assert console.file.getvalue().split(f"{tmp_path}\n")[1].splitlines() == [
        "lr=0.1,seed=0: kept  (1 of 3 done)",
        "lr=0.1,seed=1: starts",
        "lr=0.1,seed=1: finished, 5/5 rounds, test accuracy 87.5%, 0:00  (2 of 3 done)",
        "lr=0.2,seed=0: starts",
        "warning: [odd]",
        "lr=0.2,seed=0: failed, 0:00: no memory  (3 of 3 done)",
    ]


def test_the_live_table_follows_the_run_directories(wrote, tmp_path):
    console = terminal(force_terminal=True, color_system=None)
    with watch_sweep(console, quiet=False) as live:
        live.begin(tmp_path, CELLS, 2)
        live.start_cell(CELLS[0])
        wrote(CELLS[0], ["1,0.5,0.25", ""])
        text = draw_live(live)
        assert "lr=0.1,seed=0   running     1/5           25.0%      0:00" in text
        assert "lr=0.1,seed=1   waiting" in text
        assert "3 cells: 1 running, 2 waiting" in text
        wrote(CELLS[0], ["1,0.5,0.25", "2,0.4,0.5", ""])
        assert "running     2/5           50.0%" in draw_live(live)
        live.end_cell(CELLS[0], "failed", "no memory")
        assert "1 failed, 2 waiting" in draw_live(live)
    assert not live.live.is_started


def test_with_more_cells_than_lines_the_running_ones_are_shown_first(tmp_path):
    console = terminal(height=12, force_terminal=True, color_system=None)
    cells = [f"seed={index}" for index in range(50)]
    with watch_sweep(console, quiet=False) as live:
        live.begin(tmp_path, cells, 2)
        for cell in cells[:30]:
            live.end_cell(cell, "kept")
        for cell in cells[40:42]:
            live.start_cell(cell)
        text = draw_live(live)
    rows = [line.split()[0] for line in text.splitlines() if "seed=" in line]
    assert rows[:3] == ["seed=40", "seed=41", "seed=30"]
    assert len(text.splitlines()) <= 12
    assert "50 cells: 2 running, 18 waiting, 30 kept (45 not shown)" in text


def test_a_log_hears_of_running_cells_after_a_long_silence(wrote, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_output, "LOOK_S", 0.01)
    monkeypatch.setattr(sweep_output, "QUIET_S", 0.03)
    console = terminal(force_terminal=False)
    with watch_sweep(console, quiet=False) as lines:
        lines.begin(tmp_path, CELLS, 1)
        wrote(CELLS[0], ["1,0.5,0.7\n", "2,0.4,0.8\n"])
        lines.start_cell(CELLS[0])
        before = len(read_lines(console))
        while len(read_lines(console)) == before:
            time.sleep(0.01)
    assert read_lines(console)[before].startswith(f"{CELLS[0]}: 2/5  80.0%")


def test_python_shows_progress_when_it_is_asked_to(tmp_path, capsys):
    given = scenario(name="shown", schedule={"rounds": 1})
    run(given, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    run(given, tmp_path / "run", progress=True)
    said = capsys.readouterr().err
    assert "round 1/1" in said
    (tmp_path / "s.yaml").write_text(given.yaml())
    swept = load_sweep(tmp_path / "s.yaml", {"sweep": "{seed: [0]}"})
    run_sweep(swept, tmp_path / "swept", progress=True)
    assert "(1 of 1 done)" in capsys.readouterr().err
