"""Nothing is written through links: what lies behind them is not this run's."""

import os
import shutil

import pytest
from builders import run_to_end, scenario

from simsplit.deploy.keys import make_keys
from simsplit.deploy.site_setup import make_site
from simsplit.errors import RunError
from simsplit.evidence import measurements
from simsplit.pretrain import cache, pretrain
from simsplit.pretrain.tiers import TIERS, find_named
from simsplit.results.locking import LOCK, lock

GIVEN = {"data": {"train_samples": 40}, "clients": {"count": 1}, "schedule": {"rounds": 2}}
PRECIOUS = "precious\n" * 1000


@pytest.fixture
def run(finished, tmp_path):
    return finished.copy(scenario(**GIVEN), tmp_path / "run")


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


TRACKERS = {
    "jsonl": "rounds.jsonl",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}


@pytest.mark.parametrize("kind", TRACKERS)
def test_an_observer_writes_through_no_link(kind, tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv("WANDB_MODE", "offline")
    made, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    made.mkdir()
    if kind == "jsonl":
        elsewhere.write_text(PRECIOUS)
    else:
        elsewhere.mkdir()
    (made / TRACKERS[kind]).symlink_to(elsewhere)
    run_to_end(scenario(**GIVEN, observers=[{"kind": kind}]), made)  # its fault is a warning
    if kind == "jsonl":
        assert elsewhere.read_text() == PRECIOUS
    else:
        assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["runs.lock", "runs.db"])
def test_a_trackers_own_files_are_no_links(name, tmp_path, precious):
    (tmp_path / "run" / "mlflow").mkdir(parents=True)
    (tmp_path / "run" / "mlflow" / name).symlink_to(precious)
    run_to_end(scenario(**GIVEN, observers=[{"kind": "mlflow"}]), tmp_path / "run")
    assert precious.read_text() == PRECIOUS


def test_a_tracked_file_with_a_second_name_is_replaced(tmp_path, precious):
    (tmp_path / "run").mkdir()
    os.link(precious, tmp_path / "run" / "mlflow.json")
    run_to_end(scenario(**GIVEN, observers=[{"kind": "mlflow"}]), tmp_path / "run")
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("is_there", [True, False])
def test_an_export_is_not_written_through_a_link(simsplit, run, tmp_path, is_there):
    elsewhere = tmp_path / "elsewhere"
    if is_there:
        elsewhere.mkdir()
    (run / "export").symlink_to(elsewhere)
    code, _, err = simsplit("export", "run")
    assert code == 2
    assert "export is a link" in err
    assert not is_there or list(elsewhere.iterdir()) == []
    assert is_there or not elsewhere.exists()


@pytest.mark.parametrize("suffix", ["", ".partial", ".lock"])
def test_the_cache_of_pretrained_models_has_no_links(tmp_path, monkeypatch, precious, suffix):
    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    folder = cache.find_cached(find_named("ci@7"))
    folder.parent.mkdir(parents=True)
    behind = tmp_path / "behind"
    behind.mkdir()
    target = precious if suffix == ".lock" else behind
    folder.with_name(folder.name + suffix).symlink_to(target)
    with pytest.raises(RunError, match="is a link"):
        cache.fetch_pretrained("ci@7", lambda line: None)
    assert precious.read_text() == PRECIOUS
    assert list(behind.iterdir()) == []


def test_a_model_is_pretrained_through_no_link(tmp_path):
    behind = tmp_path / "behind"
    behind.mkdir()
    (tmp_path / "out").symlink_to(behind)
    with pytest.raises(RunError, match="is a link"):
        pretrain(TIERS["ci"], tmp_path / "out")
    assert list(behind.iterdir()) == []


def test_a_lock_is_no_link(tmp_path, precious):
    (tmp_path / LOCK).symlink_to(precious)
    with pytest.raises(RunError, match="is a link"), lock(tmp_path):
        pass
    assert precious.read_text() == PRECIOUS


def test_a_table_of_measurements_is_not_locked_through_a_link(tmp_path, monkeypatch, precious):
    monkeypatch.setattr(measurements, "LOCKS", tmp_path)
    (tmp_path / "one.table.lock").symlink_to(precious)
    with pytest.raises(RunError, match="is a link"), measurements.hold_alone(["one/table"]):
        pass
    assert precious.read_text() == PRECIOUS


def test_keys_are_written_through_no_link(tmp_path):
    behind = tmp_path / "behind"
    behind.mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "server").symlink_to(behind)
    with pytest.raises(RunError, match="is a link"):
        make_keys(tmp_path / "keys", 1, 1)
    assert list(behind.iterdir()) == []


@pytest.mark.parametrize("name", ["checkpoints", "secret"])
def test_a_client_writes_through_no_link(tmp_path, precious, name):
    behind = tmp_path / "behind"
    behind.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / name).symlink_to(behind if name == "checkpoints" else precious)
    with pytest.raises(RunError, match="is a link"):
        make_site(scenario(**GIVEN), 0, tmp_path / "site", "private", resume=True)
    assert list(behind.iterdir()) == []
    assert precious.read_text() == PRECIOUS
