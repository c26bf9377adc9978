"""Run directories: tables that survive what runs do not, and errors that say what is there."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from builders import run_to_end, scenario
from gists import gist, says

from simsplit.errors import RunError, RunFailedError
from simsplit.experiment import Experiment
from simsplit.progress import Observer
from simsplit.results import Run, RunWriter
from simsplit.running.directories import choose_run_directory
from simsplit.terminal.documents import document_run

COLUMNS = {"rounds": ("round", "loss"), "wire": ("round", "bytes")}


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    made = RunWriter(tmp_path / "run", COLUMNS)
    made.start("name: run\n", {"python": "3"})
    return made


def test_floats_come_back_bit_for_bit(writer: RunWriter) -> None:
    values = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -1e-17, 2.0, math.inf]
    writer.append("rounds", [{"round": n, "loss": value} for n, value in enumerate(values)])
    assert Run.load(writer.path).rounds["loss"].tolist() == values


def test_a_missing_value_is_an_empty_cell(writer: RunWriter) -> None:
    writer.append("rounds", [{"round": 1}, {"round": 2, "loss": 0.5}])
    assert Run.load(writer.path).rounds["loss"].isna().tolist() == [True, False]


def test_a_column_nobody_announced_is_a_mistake(writer: RunWriter) -> None:
    with pytest.raises(ValueError, match="accuracy"):
        writer.append("rounds", [{"round": 1, "accuracy": 1.0}])


def test_a_torn_last_line_is_left_out(writer: RunWriter) -> None:
    writer.append("rounds", [{"round": 1, "loss": 0.25}])
    with (writer.path / "rounds.csv").open("a") as file:
        file.write("2,0.1")  # which was to become 0.125
    assert Run.load(writer.path).rounds.to_dict("list") == {"round": [1], "loss": [0.25]}


@pytest.mark.parametrize("content", [None, "", "round,lo"])
def test_a_table_that_is_missing_or_has_no_header_is_a_run_error(
    content: str | None, writer: RunWriter
) -> None:
    file = writer.path / "rounds.csv"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(RunError, match=r"cannot read .*rounds\.csv"):
        _ = Run.load(writer.path).rounds


def test_an_empty_table_has_its_columns(writer: RunWriter) -> None:
    assert list(Run.load(writer.path).wire.columns) == ["round", "bytes"]


@pytest.mark.parametrize("content", [None, '{"status": "runn'])
def test_a_summary_that_cannot_be_read_is_a_run_error(
    content: str | None, writer: RunWriter
) -> None:
    if content is not None:
        (writer.path / "summary.json").write_text(content)
    with pytest.raises(RunError, match=r"cannot read .*summary\.json"):
        _ = Run.load(writer.path).summary


def test_rewinding_cuts_back_to_what_was_recorded(writer: RunWriter) -> None:
    writer.append("rounds", [{"round": 1, "loss": 0.25}])
    sizes = writer.sync_tables()
    assert sizes == {"rounds": len("round,loss\n1,0.25\n"), "wire": len("round,bytes\n")}
    writer.append("rounds", [{"round": 2, "loss": 0.5}])
    writer.append("wire", [{"round": 2, "bytes": 8}])
    writer.rewind(sizes)
    run = Run.load(writer.path)
    assert (len(run.rounds), len(run.wire)) == (1, 0)
    writer.append("rounds", [{"round": 2, "loss": 0.75}])
    assert Run.load(writer.path).rounds["loss"].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("lost", ["a line", "the file"])
def test_a_table_shorter_than_recorded_cannot_be_resumed(lost: str, writer: RunWriter) -> None:
    writer.append("rounds", [{"round": 1, "loss": 0.25}])
    sizes = writer.sync_tables()
    file = writer.path / "rounds.csv"
    if lost == "a line":
        file.write_text("round,loss\n")
    else:
        file.unlink()
    with pytest.raises(RunError, match=r"rounds\.csv.*shorter"):
        writer.rewind(sizes)


def test_json_is_written_whole_or_not_at_all(writer: RunWriter) -> None:
    writer.write_json("summary.json", {"status": "running"})
    with pytest.raises(TypeError):
        writer.write_json("summary.json", {"status": object()})
    assert Run.load(writer.path).summary == {"status": "running"}
    (writer.path / "folder.json").mkdir()
    with pytest.raises(RunFailedError, match=r"cannot write .*folder\.json.*--resume"):
        writer.write_json("folder.json", {})
    assert not list(writer.path.glob("*.partial"))


def test_a_finished_run_leaves_nothing_half_written(tmp_path: Path) -> None:
    given = scenario(data={"train_samples": 40}, clients={"count": 1}, schedule={"rounds": 1})
    run_to_end(given, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert Run.load(tmp_path / "run").summary["status"] == "finished"


def test_runs_are_numbered_by_name(tmp_path: Path) -> None:
    given = scenario(name="a.b", output={"root": str(tmp_path)})
    names = []
    for _ in range(3):
        path = choose_run_directory(given, None, resume=False)
        path.mkdir()
        names.append(path.name)
    assert names == ["a.b", "a.b-2", "a.b-3"]
    assert choose_run_directory(given, None, resume=True).name == "a.b-3"
    other = scenario(name="a", output={"root": str(tmp_path)})
    assert choose_run_directory(other, None, resume=True).name == "a"


def test_a_run_is_not_written_over(writer: RunWriter, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"already.*--out.*--resume"):
        choose_run_directory(scenario(), writer.path, resume=False)
    assert choose_run_directory(scenario(), writer.path, resume=True) == writer.path
    assert choose_run_directory(scenario(), str(tmp_path), resume=False) == tmp_path


def test_loading_what_is_no_run_names_the_runs_in_it(writer: RunWriter, tmp_path: Path) -> None:
    RunWriter(tmp_path / "another", COLUMNS).start("", {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError) as caught:
        Run.load(tmp_path)
    assert says(
        str(caught.value),
        f"{tmp_path} ... scenario.yaml ... {tmp_path / 'another'}, {tmp_path / 'run'}",
    )
    with pytest.raises(RunError, match=r"\(no scenario\.yaml in it\)$"):
        Run.load(tmp_path / "empty")
    with pytest.raises(RunError, match=gist(f"{tmp_path / 'rnu'}: no such folder ... 'run'")):
        Run.load(tmp_path / "rnu")


def test_pandas_reads_a_table_in_one_line(writer: RunWriter) -> None:
    writer.append("wire", [{"round": 1, "bytes": 2**40}])
    assert pd.read_csv(writer.path / "wire.csv")["bytes"].tolist() == [2**40]


def test_the_document_of_a_run_under_way_has_its_rounds(tmp_path):
    class Stops(Observer):
        def round(self, ended):
            assert ended.number < 2, "killed"

    given = scenario(schedule={"rounds": 3})
    with pytest.raises(AssertionError):
        Experiment(given, tmp_path / "run", [Stops()]).run(resume=False)
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**summary, "status": "running", "rounds_done": 0}))
    document = document_run(Run.load(tmp_path / "run"))
    assert document["rounds_done"] == document["last"]["round"] >= 1
    assert document["last"]["test_accuracy"] >= 0
