"""A finished run is made once, is read by many, and a test that writes in it is named."""

import os

import finished
import pytest
from builders import run_to_end, scenario
from comparing import assert_equal

ONE = {"data": {"train_samples": 20, "test_samples": 10}, "schedule": {"rounds": 1}}


@pytest.fixture
def counted(monkeypatch):
    made = []
    monkeypatch.setattr(
        finished, "run_to_end", lambda *given: (made.append(given), run_to_end(*given))[1]
    )
    return made


def test_each_scenario_is_run_once_whoever_asks(counted, tmp_path):
    given = scenario(**ONE)
    paths = {finished.FinishedRuns(tmp_path / "shared")(given) for _ in range(2)}
    assert (len(paths), len(counted)) == (1, 1)
    runs = finished.FinishedRuns(tmp_path / "shared")
    assert runs(scenario(**ONE, seed=4)) not in paths
    assert len(counted) == 2
    assert_equal(*paths, runs.copy(given, tmp_path / "copy"))
    runs.check()


def test_a_run_that_was_cut_off_is_made_anew(counted, tmp_path):
    given = scenario(**ONE)
    path = finished.FinishedRuns(tmp_path)(given)
    (path.parent / "done").unlink()
    (path / "rounds.csv").unlink()
    assert (finished.FinishedRuns(tmp_path)(given) / "rounds.csv").exists()
    assert len(counted) == 2


def test_who_writes_is_refused_or_noticed(tmp_path):
    runs = finished.FinishedRuns(tmp_path / "shared")
    path = runs(scenario(**ONE))
    assert not any(each.stat().st_mode & 0o222 for each in (path, *path.rglob("*")))
    if os.geteuid() == 0:
        (path / "rounds.csv").write_text("")
        with pytest.raises(AssertionError, match="run"):
            runs.check()
    else:
        with pytest.raises(PermissionError):
            (path / "rounds.csv").write_text("")
    (runs.copy(scenario(**ONE), tmp_path / "own") / "rounds.csv").write_text("")
