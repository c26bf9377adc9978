"""An answer is printed again as long as nothing has changed that it was made from."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from simsplit.showing.saying import echo, say
from simsplit.terminal import kept_answers
from simsplit.terminal.kept_answers import answer_once


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """Return a checkout of its own: a package, rows, a folder to stand in, and a cache."""
    package = tmp_path / "checkout" / "simsplit" / "terminal"
    package.mkdir(parents=True)
    (package / "kept_answers.py").write_text("the code")
    (tmp_path / "checkout" / "scenarios").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(kept_answers, "__file__", str(package / "kept_answers.py"))
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "checkout"


class Command:
    """A command that counts how often it is asked."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.asked = code, 0

    def __call__(self) -> None:
        self.asked += 1
        echo("a result")
        say("a remark")
        echo("another result")
        sys.exit(self.code)


def ask(command: Command, *words: str) -> bool:
    """Return whether the command answered anew."""
    before = command.asked
    with suppress(SystemExit):
        answer_once(words, command)
    return command.asked > before


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_an_answer_is_printed_again_on_its_streams(checkout, capsys):
    command = Command()
    for anew in (True, False, False):
        assert ask(command, "list", "methods") is anew
        assert capsys.readouterr() == ("a result\nanother result\n", "a remark\n")


def test_an_error_is_no_answer_to_keep(checkout):
    command = Command(code=2)
    assert ask(command, "papers")
    assert ask(command, "papers")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "quickstart"),
        ("board", "images"),
        ("board", "images", "--show", "--html", "page.html"),
        ("board", "images", "--show", "--figure=board.png"),
        ("list", "methods", "--plugin", "own.py"),
        ("list", "methods", "--plugin=own.py"),
        (),
    ],
)
def test_what_measures_writes_or_takes_a_plugin_is_asked_each_time(checkout, words):
    command = Command()
    assert ask(command, *words)
    assert ask(command, *words)


@pytest.mark.parametrize("words", [("board",), ("board", "images", "--show", "--format=csv")])
def test_a_board_that_measures_nothing_is_kept(checkout, words):
    command = Command()
    assert ask(command, *words)
    assert not ask(command, *words)


@pytest.mark.parametrize(
    "file",
    [
        "checkout/simsplit/terminal/kept_answers.py",
        "checkout/simsplit/catalogue/references.bib",
        "checkout/scenarios/papers/a/table1.yaml",
        "checkout/results/a/table1.small.csv",
        "here/results/a/table1.small.csv",
        "here/mine.yaml",
    ],
)
def test_a_file_that_comes_changes_or_goes_asks_anew(checkout, file):
    command, words = Command(), ("cite", "mine.yaml")
    path = checkout.parent / file
    ask(command, *words)
    write(path, "one")
    assert ask(command, *words)
    write(path, "two")
    assert ask(command, *words)
    assert not ask(command, *words)
    path.unlink()
    assert ask(command, *words) is (file == "checkout/simsplit/terminal/kept_answers.py")


@pytest.mark.parametrize("words", [("papers",), ("board", "images", "--show")])
def test_data_by_which_rows_are_stale_ask_anew(checkout, words):
    command = Command()
    scenario = checkout / "simsplit" / "shipped" / "table1.yaml"
    write(scenario, "data: {source: {kind: parquet, path: data/mnist}}")
    file = write(Path("data/mnist/train.parquet"), "digits")
    write(Path("data/other/train.parquet"), "words")
    assert ask(command, *words)
    assert not ask(command, *words)
    write(Path("data/other/train.parquet"), "of no scenario")
    assert not ask(command, *words)
    write(file, "other digits")
    assert ask(command, *words)
    file.unlink()
    assert ask(command, *words)


def test_a_runs_own_scenario_counts_where_the_words_name_its_folder(checkout):
    command = Command()
    file = write(Path("runs/one/scenario.yaml"), "method: raw")
    ask(command, "cite", "runs/one")
    assert not ask(command, "cite", "runs/one")
    write(file, "method: topk")
    assert ask(command, "cite", "runs/one")


def test_a_file_that_may_extend_others_is_read_each_time(checkout):
    command = Command()
    write(Path("mine.yaml"), "extends: other.yaml")
    assert ask(command, "cite", "mine.yaml")
    assert ask(command, "cite", "mine.yaml")


def test_what_comes_through_a_pipe_is_read_each_time(checkout):
    command = Command()
    os.mkfifo("pipe")
    assert ask(command, "cite", "pipe")
    assert ask(command, "cite", "pipe")


def test_other_words_and_another_terminal_ask_anew(checkout, monkeypatch):
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    command = Command()
    assert ask(command, "list")
    assert ask(command, "list", "methods")
    monkeypatch.setenv("COLUMNS", "77")
    assert ask(command, "list")
    monkeypatch.setenv("NO_COLOR", "1")
    assert ask(command, "list")
    assert not ask(command, "list")


def test_big_tables_of_runs_in_a_folder_called_results_are_left_alone(checkout):
    command = Command()
    os.mkfifo(write(Path("results/one/rounds.csv"), "").with_name("a.small.csv"))
    assert ask(command, "papers")
    write(Path("results/one/rounds.csv"), "1,2")
    assert not ask(command, "papers")


@pytest.mark.parametrize("text", ["", "{", "[[2, 'x']]", "[[0]]", '{"a": 1}', "[3]"])
def test_a_spoiled_answer_is_made_anew(checkout, capsys, text):
    command = Command()
    ask(command, "list")
    (kept,) = (checkout.parent / "cache" / "answers").iterdir()
    kept.write_text(text)
    assert ask(command, "list")
    assert not ask(command, "list")


def test_a_link_in_place_of_an_answer_is_not_believed(checkout):
    command = Command()
    ask(command, "list")
    (kept,) = (checkout.parent / "cache" / "answers").iterdir()
    kept.rename(checkout.parent / "elsewhere")
    kept.symlink_to(checkout.parent / "elsewhere")
    assert ask(command, "list")


def test_a_cache_that_cannot_be_written_is_no_error(checkout, monkeypatch):
    monkeypatch.setenv("SIMSPLIT_CACHE", str(write(checkout.parent / "file", "")))
    command = Command()
    assert ask(command, "list")
    assert ask(command, "list")


def test_only_the_newest_answers_are_kept(checkout, monkeypatch):
    monkeypatch.setattr(kept_answers, "MOST_ANSWERS", 3)
    command = Command()
    for number in range(5):
        ask(command, "list", str(number))
        for file in (checkout.parent / "cache" / "answers").iterdir():
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
    assert [ask(command, "list", str(number)) for number in (4, 3, 2)] == [False] * 3
    assert ask(command, "list", "0")
