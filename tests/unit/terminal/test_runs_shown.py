import io
import re
from pathlib import Path

import pytest
from builders import StopAt, scenario
from rich.console import Console

from simsplit.experiment import Experiment
from simsplit.progress import Observer, Plan, RoundTold
from simsplit.terminal.runs import (
    Lines,
    Live,
    Pace,
    clock,
    figures,
    observer_for,
    opening,
)

PLAN = Plan(
    Path("runs/x"), "x", rounds=10, done=0, clients=3, samples=1234, memory="1 GiB", engine="inline"
)
ROW = {
    "round": 1,
    "train_loss": 0.25,
    "test_accuracy": 0.875,
    "validation_accuracy": 0.5,
    "bytes_total": 2048,
}


def told(number, elapsed_s=1.0):
    """Of a round that ended so."""
    return RoundTold(number, {**ROW, "round": number}, (), {}, elapsed_s)


def terminal(**options):
    """A console of 100 columns over a text that can be read back."""
    return Console(file=io.StringIO(), width=100, **options)


def test_who_watches_depends_on_where(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert type(observer_for(terminal(), quiet=False)) is Lines
    assert type(observer_for(terminal(force_terminal=True), quiet=False)) is Live
    assert type(observer_for(terminal(force_terminal=True), quiet=True)) is Observer
    monkeypatch.setenv("NO_COLOR", "1")
    assert type(observer_for(terminal(force_terminal=True), quiet=False)) is Lines


def test_lines_say_what_runs_and_then_a_line_a_round():
    console = terminal()
    lines = Lines(console)
    lines.begin(PLAN)
    lines.step(1, 2)
    lines.round(told(1, 61.0))
    lines.warn("[odd] thing")
    said = console.file.getvalue().splitlines()
    assert said[:3] == [
        "x: 3 clients, 1,234 samples, 10 rounds",
        "memory: about 1 GiB",
        "run directory: runs/x",
    ]
    assert said[3].startswith(
        "round  1/10  test accuracy 87.5%  validation accuracy 50.0%  loss 0.2500  2.0 KiB sent  "
        "1:01 gone, 0:0"
    )
    assert said[4:] == ["warning: [odd] thing"]


@pytest.mark.parametrize(
    ("fell_out", "why"),
    [
        ({"dropped": 3, "late": 0}, "3 dropped out"),
        ({"dropped": 1, "late": 2}, "1 dropped out, 2 late"),
        ({"dropped": 0, "late": 0}, "no client could be reached"),
    ],
)
def test_a_round_in_which_nobody_trained_says_why(fell_out, why):
    row = {name: value for name, value in ROW.items() if name != "train_loss"} | fell_out
    assert f"validation accuracy 50.0%  nobody trained ({why})  2.0 KiB sent" in figures(row)


def test_lines_are_never_wrapped():
    console = Console(file=io.StringIO(), width=20)
    lines = Lines(console)
    lines.begin(PLAN)
    lines.round(told(1))
    assert len(console.file.getvalue().splitlines()) == 4


def test_a_resumed_run_says_where_it_goes_on():
    plan = Plan(Path("r"), "x", rounds=10, done=4, clients=3, samples=5, memory="", engine="inline")
    assert "10 rounds, going on after round 4" in opening(plan)


@pytest.mark.parametrize("stop_at", [3, 10])
def test_live_progress_moves_and_goes_away(monkeypatch, stop_at):
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = terminal(force_terminal=True)
    live = observer_for(console, quiet=False)
    live.begin(PLAN)
    for number in range(1, stop_at + 1):
        live.step(1, 2)
        live.round(told(number))
    live.warn("hot")
    live.end("finished")
    text = console.file.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert f"round {stop_at}/10" in plain
    assert "test accuracy 87.5%" in plain
    assert "warning: hot" in plain
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text[-40:]  # the cursor is back


def test_the_bar_goes_away_when_a_run_is_stopped(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_COLOR", raising=False)
    live = observer_for(terminal(force_terminal=True), quiet=False)
    with pytest.raises(KeyboardInterrupt):
        Experiment(scenario(), tmp_path / "run", [live, StopAt(1)]).run(resume=False)
    assert not live.bar.live.is_started


def test_a_run_that_fails_before_it_begins_has_no_bar_to_take_away():
    live = observer_for(terminal(force_terminal=True, no_color=False), quiet=False)
    live.end("failed")
    assert getattr(live, "bar", None) is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "test accuracy 87.5%  validation accuracy 50.0%  loss 0.2500  2.0 KiB sent"),
        ({"train_loss": 1, "bytes_total": 3 * 2**30}, "loss 1.0000  3.00 GiB sent"),
    ],
)
def test_figures(row, words):
    assert figures(row) == words


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599.9, "1:00:00"), (7384, "2:03:04")],
)
def test_clock(seconds, shown):
    assert clock(seconds) == shown


def test_the_time_left_counts_from_where_the_run_went_on():
    pace = Pace(
        Plan(Path("r"), "x", rounds=10, done=4, clients=1, samples=1, memory="", engine="inline")
    )
    pace.started -= 6
    assert pace.left(7) == pytest.approx(6, abs=0.5)
    assert pace.left(10) == 0
