"""Nothing foreign moves a terminal's cursor; what rich writes itself is kept."""

import io
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from builders import run_to_end, scenario
from rich.live import Live
from rich.text import Text

import simsplit
from simsplit.report.tables import Table
from simsplit.showing import saying
from simsplit.showing.pace import format_clock
from simsplit.showing.run_output import Lines
from simsplit.showing.saying import echo, echo_prose, make_console, say
from simsplit.showing.sweep_output import SweepLines
from simsplit.terminal.printing import print_table

NASTY = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\u202eb"
FEW = {"data": {"train_samples": 40}, "clients": {"count": 1}, "schedule": {"rounds": 1}}


def is_clean(text: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_terminal_gets_prose_wrapped_between_words_and_commands_whole(capsys, monkeypatch):
    prose = "  open: " + "words_with_dashes - " * 9
    command = "measure it: simsplit board labels " + "--seeds 0-2 " * 9
    monkeypatch.delenv("COLUMNS", raising=False)
    echo_prose(prose)
    assert capsys.readouterr().out == f"{prose}\n"
    monkeypatch.setenv("COLUMNS", "40")
    echo_prose(prose)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("  ") for line in lines)
    assert " ".join(map(str.strip, lines)) == prose.strip()
    echo_prose(command)
    assert capsys.readouterr().out == f"{command}\n"


@pytest.mark.parametrize(("is_terminal", "widest"), [(True, 60), (False, 140)])
def test_without_colour_a_table_has_the_terminals_width(capsys, monkeypatch, is_terminal, widest):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((60, 20)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    rows = [("a name", "word " * 60)]
    print_table(Table("", ("name", "words"), rows, "ll"), "table")
    lines = capsys.readouterr().out.splitlines()
    assert widest - 10 < max(len(line.rstrip()) for line in lines) <= widest


def test_messages_results_and_lines_are_stripped(capsys):
    say(NASTY)
    echo(NASTY)
    Lines(make_console(stderr=True)).warn(NASTY)
    SweepLines(make_console()).warn(NASTY)
    printed = capsys.readouterr()
    assert is_clean(printed.out)
    assert is_clean(printed.err)
    assert printed.out.count("a?[2J") == printed.err.count("a?[2J") == 2


def test_on_a_terminal_the_codes_of_rich_alone_remain(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = make_console(force_terminal=True)
    console.file = io.StringIO()
    with Live(Text(NASTY, style="bold"), console=console, auto_refresh=False) as live:
        live.refresh()
    written = console.file.getvalue()
    assert "\x1b[1m" in written
    assert "\x1b[2J" not in written
    assert "a?[2J" in written


@pytest.mark.parametrize("words", [("show",), ("compare",), ("watch",), ("report",)])
def test_what_a_run_directory_says_is_stripped(simsplit, tmp_path, words):
    run = run_to_end(scenario(**FEW), tmp_path / "run").path
    for file in (run / "summary.json", run / "scenario.yaml"):
        name = '"a\\u001b[2J"' if file.suffix == ".yaml" else "a\\u001b[2J"
        file.write_text(file.read_text().replace("tiny", name))
    moved = run.rename(tmp_path / "b\x1b[2J")
    code, out, err = simsplit(*words, moved)
    assert code == 0
    assert is_clean(out + err)
    assert "?[2J" in out


def test_an_error_is_stripped(simsplit, tmp_path):
    (tmp_path / "bad.yaml").write_text('"k\\x1b[2J": 1\nname: "\\x1b[31m"\n')
    code, _, err = simsplit("validate", "bad.yaml")
    assert code == 2
    assert is_clean(err)
    assert "k?[2J" in err


def test_consoles_are_made_in_one_place():
    folder = Path(simsplit.__file__).parent
    making = [file for file in folder.rglob("*.py") if "Console(" in file.read_text()]
    assert making == [Path(saying.__file__)]


def test_a_request_to_terminate_is_remembered_where_a_library_drops_its_exception():
    """As Ray does: an exception that arises in its calls is replaced by a KeyboardInterrupt."""
    heeded = signal.getsignal(signal.SIGTERM)
    codes = []
    for ask in (lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: None):
        try:
            saying.heed_termination()
            with suppress(KeyboardInterrupt):
                ask()
            with pytest.raises(typer.Exit) as end:
                saying.end_interrupted("go on")
            codes.append(end.value.exit_code)
        finally:
            signal.signal(signal.SIGTERM, heeded)
    assert codes == [143, 130]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_a_clock_of_a_damaged_file_is_unknown(seconds: float) -> None:
    assert format_clock(seconds) == "?"
