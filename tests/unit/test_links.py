"""Nothing is written through links: what lies behind them is not this run's."""

import os
import shutil

import pytest
from builders import run_to_end, scenario

GIVEN = {"data": {"train_samples": 40}, "clients": {"count": 1}, "schedule": {"rounds": 2}}
PRECIOUS = "precious\n" * 1000


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return run_to_end(scenario(**GIVEN), tmp_path_factory.mktemp("links") / "run").path


@pytest.fixture
def run(once, tmp_path):
    shutil.copytree(once, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def precious(tmp_path):
    file = tmp_path / "precious"
    file.write_text(PRECIOUS)
    return file


def test_a_report_is_not_written_through_a_link(simsplit, run, precious):
    (run / "report.html").symlink_to(precious)
    code, _, err = simsplit("report", "run")
    assert code == 2
    assert "report.html is a link" in err
    assert precious.read_text() == PRECIOUS


def test_a_report_replaces_its_file(simsplit, run, precious):
    os.link(precious, run / "report.html")
    assert simsplit("report", "run")[0] == 0
    assert precious.read_text() == PRECIOUS
    assert (run / "report.html").read_text().startswith("<!")


@pytest.mark.parametrize("name", ["rounds.csv", "summary.json", "environment.json"])
def test_resuming_writes_through_no_link(simsplit, run, tmp_path, name):
    content = (run / name).read_text() + "\n" * 1000
    behind = tmp_path / "behind"
    behind.write_text(content)
    (run / name).unlink()
    (run / name).symlink_to(behind)
    words = ("run", run / "scenario.yaml", "--out", "run", "--resume")
    code, _, err = simsplit(*words, "--set", "schedule.rounds=3")
    assert code == 2
    assert f"{name} is a link" in err
    assert behind.read_text() == content


def test_resuming_replaces_a_table_with_a_second_name(simsplit, run, tmp_path):
    content = (run / "rounds.csv").read_text()
    os.link(run / "rounds.csv", tmp_path / "second")
    words = ("run", run / "scenario.yaml", "--out", "run", "--resume")
    assert simsplit(*words, "--set", "schedule.rounds=3")[0] == 0
    assert (tmp_path / "second").read_text() == content
    assert (run / "rounds.csv").read_text().startswith(content)


@pytest.mark.parametrize("folder", ["checkpoints", "figures"])
def test_a_linked_folder_is_not_written(simsplit, run, tmp_path, folder):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run / folder, elsewhere) if (run / folder).exists() else elsewhere.mkdir()
    shutil.rmtree(run / folder, ignore_errors=True)
    (run / folder).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    words = (
        "run",
        run / "scenario.yaml",
        "--out",
        "run",
        "--resume",
        "--set",
        "output.figures=true",
    )
    simsplit(*words, "--set", "schedule.rounds=3")
    assert sorted(elsewhere.rglob("*")) == before


def test_a_half_written_file_that_is_a_link_is_left_alone(simsplit, run, precious):
    (run / "report.html.partial").symlink_to(precious)
    assert simsplit("report", "run")[0] == 0
    assert precious.read_text() == PRECIOUS
    assert not (run / "report.html.partial").exists()


def test_a_new_scenario_is_not_written_through_a_link(simsplit, tmp_path, precious):
    (tmp_path / "scenario.schema.json").symlink_to(precious)
    assert simsplit("new", "mine")[0] == 2
    assert precious.read_text() == PRECIOUS


def test_a_page_and_a_drawing_that_cannot_be_are_named(simsplit, run):
    assert simsplit("report", "run", "--out", "x" * 300 + ".html")[0] == 2
    assert simsplit("report", "run", "--out", run / "rounds.csv" / "page.html")[0] == 2
    plot = ("compare", "run", "--plot", "bytes_total,test_accuracy", "--out", "x" * 300 + ".png")
    assert simsplit(*plot)[0] == 2
