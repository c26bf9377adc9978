import io
import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import StopAt, scenario
from gists import says
from rich.console import Console

from simsplit.experiment import Experiment
from simsplit.progress import Observer, RoundEnded, RunPlan
from simsplit.rows import RoundRow
from simsplit.showing.pace import Pace, format_clock, format_rate
from simsplit.showing.run_output import (
    Lines,
    Live,
    describe_plan,
    describe_round,
    make_observer,
    print_words,
)

PLAN = RunPlan(
    Path("runs/x"), "x", rounds=10, done=0, clients=3, samples=1234, memory="1 GiB", engine="inline"
)
ROW = RoundRow(
    round=1,
    train_loss=0.25,
    further={"test_accuracy": 0.875, "validation_accuracy": 0.5},
    bytes_total=2048,
)


def end_round(number, elapsed_s=1.0):
    """Make the event of a round that ended so."""
    return RoundEnded(number, replace(ROW, round=number), (), {}, elapsed_s)


def terminal(**options):
    """Make a console of 100 columns over a text that can be read back."""
    return Console(file=io.StringIO(), width=100, **options)


def test_who_watches_depends_on_where(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert type(make_observer(terminal(), quiet=False)) is Lines
    assert type(make_observer(terminal(force_terminal=True), quiet=False)) is Live
    assert type(make_observer(terminal(force_terminal=True), quiet=True)) is Observer
    monkeypatch.setenv("NO_COLOR", "1")
    assert type(make_observer(terminal(force_terminal=True), quiet=False)) is Lines


def test_lines_say_what_runs_and_then_a_line_a_round():
    console = terminal()
    lines = Lines(console)
    lines.begin(PLAN)
    lines.step(1, 2)
    lines.round(end_round(1, 61.0))
    lines.warn("[odd] thing")
    messages = console.file.getvalue().splitlines()
    assert messages[:3] == [
        "x: 3 clients, 1,234 samples, 10 rounds",
        "memory: about 1 GiB",
        "run directory: runs/x",
    ]
    assert messages[3].startswith(
        "round  1/10  test accuracy 87.5%  validation accuracy 50.0%  loss 0.2500  2.0 KiB sent  "
        "1:01 gone, 0:0"
    )
    assert messages[4:] == ["warning: [odd] thing"]


@pytest.mark.parametrize(
    ("fell_out", "why"),
    [
        ({"dropped": 3, "late": 0}, "3 dropped out"),
        ({"dropped": 1, "late": 2}, "1 dropped out, 2 late"),
        ({"dropped": 0, "late": 0}, "no client ... reached"),
    ],
)
def test_a_round_in_which_nobody_trained_says_why(fell_out, why):
    row = replace(ROW, train_loss=None, **fell_out)
    shown = describe_round(row)
    assert says(shown, f"validation accuracy 50.0%  nobody trained ({why} ... )  2.0 KiB sent")


def test_lines_are_never_wrapped():
    console = Console(file=io.StringIO(), width=20)
    lines = Lines(console)
    lines.begin(PLAN)
    lines.round(end_round(1))
    assert len(console.file.getvalue().splitlines()) == 4


def test_a_resumed_run_says_where_it_goes_on():
    plan = RunPlan(
        Path("r"), "x", rounds=10, done=4, clients=3, samples=5, memory="", engine="inline"
    )
    assert says(describe_plan(plan), "10 rounds ... after round 4")


@pytest.mark.parametrize("stop_at", [3, 10])
def test_live_progress_moves_and_goes_away(monkeypatch, stop_at):
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = terminal(force_terminal=True)
    live = make_observer(console, quiet=False)
    live.begin(PLAN)
    for number in range(1, stop_at + 1):
        live.step(1, 2)
        live.round(end_round(number))
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
    live = make_observer(terminal(force_terminal=True), quiet=False)
    with pytest.raises(KeyboardInterrupt):
        Experiment(scenario(), tmp_path / "run", [live, StopAt(1)]).run(resume=False)
    assert not live.bar.live.is_started


def test_a_run_that_fails_before_it_begins_has_no_bar_to_take_away():
    live = make_observer(terminal(force_terminal=True, no_color=False), quiet=False)
    live.end("failed")
    assert getattr(live, "bar", None) is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "test accuracy 87.5%  validation accuracy 50.0%  loss 0.2500  2.0 KiB sent"),
        (RoundRow(1, train_loss=1, bytes_total=3 * 2**30), "loss 1.0000  3.00 GiB sent"),
    ],
)
def test_figures(row, words):
    assert describe_round(row) == words


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599.9, "1:00:00"), (7384, "2:03:04")],
)
def test_clock(seconds, shown):
    assert format_clock(seconds) == shown


def test_the_time_left_counts_from_where_the_run_went_on():
    pace = Pace(
        RunPlan(Path("r"), "x", rounds=10, done=4, clients=1, samples=1, memory="", engine="inline")
    )
    pace.started -= 6
    assert not pace.has_begun
    pace.round(end_round(7))
    assert pace.estimate_left() == pytest.approx(6, abs=0.5)
    pace.round(end_round(10))
    assert pace.estimate_left() == 0


def test_what_is_left_of_a_long_round_counts_its_steps():
    pace = Pace(PLAN)
    pace.started -= 50
    pace.step(30, 60)
    assert pace.has_begun
    assert pace.estimate_left() == pytest.approx(950, rel=0.05)  # half a round of ten took 50 s


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((8, 256, 4), "2.0 steps/s, 64 samples/s"),
        ((1, 0, 4), "0.2 steps/s"),
        ((40_000, 1_280_000, 4), "10,000 steps/s, 320,000 samples/s"),
        ((0, 0, 4), ""),
    ],
)
def test_rate(counts, words):
    assert format_rate(*counts) == words


def test_a_rate_is_of_training_alone_and_samples_are_known_after_a_round():
    pace = Pace(PLAN)
    pace.round_started -= 4
    pace.step(8, 8)
    assert pace.rate == "2.0 steps/s"
    pace.work("attack ridge", 1, 2)  # takes its time, and is no training
    pace.round(RoundEnded(1, replace(ROW, steps=8, samples=256), (), {}, 9.0))
    assert pace.rate == "2.0 steps/s, 64 samples/s"


def test_lines_tell_of_a_long_round_and_of_a_long_attack(monkeypatch):
    monkeypatch.setattr("simsplit.showing.run_output.QUIET_S", 0.0)
    console = terminal()
    lines = Lines(console)
    lines.begin(PLAN)
    lines.pace.started -= 5
    lines.pace.round_started -= 5
    lines.step(1, 2)
    lines.work("attack ridge", 0, 0)
    lines.work("attack ridge", 3, 4)
    messages = console.file.getvalue().splitlines()[3:]
    assert messages == [
        "round  1/10  1 of 2 steps  0.2 steps/s  1:35 left",
        "round  1/10  attack ridge",
        "round  1/10  attack ridge: 3 of 4  0:00 left",
    ]


def test_an_attack_has_a_line_below_the_bar(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    live = make_observer(terminal(force_terminal=True), quiet=False)
    live.begin(PLAN)
    live.round(end_round(1))
    live.step(2, 2)
    live.work("attack ridge", 0, 0)
    assert live.bar.below == "attack ridge"
    assert live.bar.tasks[0].completed == 2  # and the bar does not go back
    live.end("finished")


def test_a_run_tells_of_its_attacks_by_name(tmp_path):
    heard = []

    class Working(Observer):
        def work(self, what, done, total):
            heard.append((what, done, total))

    given = scenario(
        attacks=["ridge"], data={"auxiliary": 0.4}, targets={"count": 2}, schedule={"rounds": 1}
    )
    Experiment(given, tmp_path / "run", [Working()]).run(resume=False)
    assert heard[:2] == [("evaluation", 0, 0), ("attack ridge", 0, 0)]
    assert {what for what, *_ in heard} == {"evaluation", "attack ridge"}
    assert heard[-1][1] == heard[-1][2] > 0


def test_quiet_hushes_libraries_unless_their_level_is_set(monkeypatch):
    from simsplit.showing.saying import hush

    monkeypatch.delenv("HF_HUB_VERBOSITY", raising=False)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    for name in ("DATASETS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    before = logging.getLogger("transformers").level
    hush()
    assert os.environ["HF_HUB_VERBOSITY"] == "error"
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "info"
    assert logging.getLogger("huggingface_hub").level == logging.ERROR
    assert logging.getLogger("transformers").level == before


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_narrow_terminal_cuts_figures_and_never_the_round_or_the_time_left(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    live = Live(console)
    live.begin(PLAN)
    live.round(end_round(3))
    live.bar.stop()
    shown = Console(file=io.StringIO(), width=width, record=True)
    shown.print(live.bar.get_renderable())
    (line, *_) = shown.export_text().splitlines()
    assert "round 3/10" in line
    assert re.search(r"\d:\d\d left", line)
    assert ("2.0 KiB sent" in line) is (width == 200)


def test_a_terminal_wraps_between_words_and_a_pipe_not_at_all():
    text = "round 1/10  test accuracy 87.5%  validation accuracy 50.0%"
    for is_terminal, lines in ((True, 2), (False, 1)):
        console = Console(file=io.StringIO(), width=40, force_terminal=is_terminal, no_color=True)
        print_words(console, text)
        printed = console.file.getvalue()
        assert len(printed.splitlines()) == lines
        assert printed.split() == text.split()
