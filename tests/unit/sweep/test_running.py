"""A sweep that runs: each cell an ordinary run, what is finished left alone, what fails noted."""

import json

import pytest
from builders import TINY, StopAt

from simsplit import whole_run
from simsplit.errors import RunError, ScenarioError
from simsplit.progress import SweepObserver
from simsplit.results import Run, SweepDirectory
from simsplit.running.directories import choose_run_directory
from simsplit.scenario import load_sweep
from simsplit.scenario.files import dump, merge
from simsplit.sweep import plan
from simsplit.sweep import run_sweep as run_in_jobs
from simsplit.sweep.plan import choose_jobs, choose_sweep_directory
from simsplit.sweep.running import SweepResult

SGD = {"kind": "sgd", "lr": 0.1}
SMALL = merge(TINY, {"name": "small", "train": {"client": SGD, "server": SGD}})
TABLES = ("rounds.csv", "clients.csv", "wire.csv", "scenario.yaml")

PLUGIN = """
import os, signal
from pathlib import Path
from typing import Literal
from simsplit import Method, MethodConfig

class Fatal(Method):
    def encode(self, z, step):
        if Path("armed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return z / 2

class Divide(Method):
    def encode(self, z, step):
        return z * (1 / 0)

class FatalConfig(MethodConfig):
    \"\"\"Kills its process where the file `armed` lies.\"\"\"
    kind: Literal["fatal"] = "fatal"
    def build(self, site):
        return Fatal()

class DivideConfig(MethodConfig):
    \"\"\"Has a defect.\"\"\"
    kind: Literal["divide"] = "divide"
    def build(self, site):
        return Divide()

METHODS = {"fatal": FatalConfig, "divide": DivideConfig}
"""


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Loads a small sweep in an empty working folder, with what is changed merged over it."""
    monkeypatch.chdir(tmp_path)

    def load(sweep, plugins=(), **changes):
        file = tmp_path / "swept.yaml"
        file.write_text(dump({**merge(SMALL, changes), "sweep": sweep}))
        return load_sweep(file, plugins=plugins)

    return load


def run_sweep(sweep, out, **options):
    """Run a sweep, by default in this process: starting Ray takes seconds."""
    return run_in_jobs(sweep, out, **{"jobs": 1, **options})


class Heard(SweepObserver):
    """An observer that writes down its calls."""

    def __init__(self, stop_at=None):
        self.events, self.stop_at = [], stop_at

    def start_cell(self, cell):
        self.events.append(("starts", cell))
        if cell == self.stop_at:
            raise KeyboardInterrupt

    def end_cell(self, cell, status, reason=""):
        self.events.append((status, cell))


def contents(path, names=None):
    """Return every file's bytes and time of writing."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in files
        if names is None or file.name in names
    }


def tables(path):
    return {name: (path / name).read_bytes() for name in TABLES}


@pytest.mark.slow
def test_a_cell_is_the_run_that_its_scenario_is_by_itself(swept, tmp_path):
    sweep = swept({"train.batch_size": [16, 30], "seed": [0, 1]})
    heard = Heard()
    result = run_sweep(sweep, tmp_path / "out", watch=heard)
    names = [cell.name for cell in sweep.cells]
    assert heard.events == [
        (what, name) for name in names for what in ("starts", "finished")
    ]  # fmt: skip
    assert list(result.runs) == names
    assert result.failed == {}
    alone = whole_run.run(sweep.cells[3].scenario, tmp_path / "alone")
    assert tables(result.runs[names[3]].path) == tables(alone.path)
    assert len({tables(run.path)["rounds.csv"] for run in result.runs.values()}) == 4
    directory = SweepDirectory.load(tmp_path / "out")
    assert directory.name == "small"
    assert directory.fields == {"train.batch_size": "batch_size", "seed": "seed"}
    assert [(cell.name, cell.settings) for cell in directory.cells] == [
        (cell.name, cell.settings) for cell in sweep.cells
    ]
    assert Run.load(tmp_path / "out" / "batch_size=16,seed=1").summary["status"] == "finished"


@pytest.mark.slow
def test_resuming_keeps_what_is_finished_and_runs_what_is_new(swept, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(swept({"seed": [0, 1]}), out, watch=Heard(stop_at="seed=1"))
    before = contents(out / "seed=0")
    assert "summary.json" in before
    heard = Heard()
    result = run_sweep(swept({"seed": [2, 0, 1]}), out, resume=True, watch=heard)
    assert contents(out / "seed=0") == before
    assert heard.events == [("kept", "seed=0"), ("starts", "seed=2"), ("finished", "seed=2"),
                          ("starts", "seed=1"), ("finished", "seed=1")]  # fmt: skip
    assert list(result.runs) == ["seed=2", "seed=0", "seed=1"]
    run_sweep(swept({"seed": [2]}), out, resume=True)
    assert [c.name for c in SweepDirectory.load(out).cells] == ["seed=2", "seed=0", "seed=1"]


@pytest.mark.slow
def test_a_half_finished_cell_goes_on_and_has_equal_results(swept, tmp_path):
    sweep = swept({"seed": [0, 1]}, schedule={"rounds": 3})
    whole = run_sweep(sweep, tmp_path / "whole")
    half = tmp_path / "half" / "seed=1"
    with pytest.raises(KeyboardInterrupt):
        whole_run.run(sweep.cells[1].scenario, half, observers=[StopAt(8)])
    assert Run.load(half).summary["rounds_done"] == 1
    first = Run.load(half).environment["started"]
    resumed = run_sweep(sweep, tmp_path / "half", resume=True)
    assert Run.load(half).environment["started"] == first  # not begun anew
    for name, run in whole.runs.items():
        assert tables(run.path) == tables(resumed.runs[name].path)


@pytest.mark.slow
def test_a_longer_schedule_lengthens_finished_cells(swept, tmp_path):
    run_sweep(swept({"seed": [0]}), tmp_path / "out")
    longer = run_sweep(swept({"seed": [0]}, schedule={"rounds": 3}), tmp_path / "out", resume=True)
    assert longer.runs["seed=0"].rounds["round"].tolist() == [1, 2, 3]


@pytest.mark.slow
def test_a_cell_that_fails_leaves_the_others_alone_and_is_tried_again(swept, tmp_path):
    out = tmp_path / "out"
    sweep = swept({"train.client.lr": [1e30, 0.1]}, train={"server": {"lr": 1e30}})
    result = run_sweep(sweep, out)
    # both blow up on the server's side; the sweep below is the one that has a good cell
    assert set(result.failed) == {"lr=1e+30", "lr=0.1"}
    sweep = swept({"zip": {"train.client.lr": [1e30, 0.1], "train.server.lr": [1e30, 0.1]}})
    result = run_sweep(sweep, tmp_path / "one")
    hot, good = (cell.name for cell in sweep.cells)
    assert list(result.runs) == [good]
    assert "finite" in result.failed[hot]
    assert SweepDirectory.load(tmp_path / "one").failed == result.failed
    assert result.why().splitlines()[0] == "1 of 2 cells failed"
    # A worker that does not answer is given up, and may still end its run.
    SweepDirectory.load(tmp_path / "one").note(good, "its worker failed")
    heard = Heard()
    again = run_sweep(sweep, tmp_path / "one", resume=True, watch=heard)
    assert heard.events == [("kept", good), ("starts", hot), ("failed", hot)]
    assert set(again.failed) == {hot}


def test_a_defect_is_reported_with_its_place(swept, tmp_path, plugin):
    plugins = [plugin(PLUGIN)]
    sweep = swept({"method": [[{"kind": "divide"}], []]}, plugins)
    result = run_sweep(sweep, tmp_path / "out")
    assert list(result.runs) == ["method=raw"]
    (reason,) = result.failed.values()
    assert all(
        word in reason for word in ("'divide'", "encode", "ZeroDivisionError", "my_methods.py")
    )


def test_a_cell_whose_scenario_has_changed_is_refused_before_anything_runs(swept, tmp_path):
    out = tmp_path / "out"
    run_sweep(swept({"seed": [1]}), out)
    before = contents(out)
    with pytest.raises(RunError) as refused:
        run_sweep(swept({"seed": [0, 1]}, train={"client": {"lr": 0.3}}), out, resume=True)
    assert str(refused.value).startswith("cell seed=1: ")
    assert "another scenario: train.client.lr was 0.1, is 0.3. Give another --out" in str(
        refused.value
    )
    assert contents(out) == before


def test_what_may_change_may_change(swept, tmp_path):
    run_sweep(swept({"seed": [1]}), tmp_path / "out")
    heard = Heard()
    may = {"checkpoint": {"keep": 5}, "output": {"root": "elsewhere"}}
    other = swept({"seed": [1]}, **may, observers=[{"kind": "jsonl"}])
    run_sweep(other, tmp_path / "out", resume=True, watch=heard)
    assert heard.events == [("kept", "seed=1")]


def test_nothing_is_written_over(swept, tmp_path):
    sweep = swept({"seed": [0]}, output={"root": str(tmp_path / "runs")})
    for path in ("runs/small", "runs/small-2"):
        assert choose_sweep_directory(sweep, None, resume=False) == tmp_path / path
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "runs/small-2/scenario.yaml").touch()  # a run is no sweep to go on with
    assert choose_sweep_directory(sweep, None, resume=True) == tmp_path / "runs/small"
    with pytest.raises(RunError, match="a run"):
        choose_sweep_directory(sweep, tmp_path / "runs/small-2", resume=True)
    for file in ("taken/sweep.json", "cells/seed=0/scenario.yaml"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
        out = tmp_path / file.split("/")[0]
        with pytest.raises(RunError, match=r"already.*--out"):
            choose_sweep_directory(sweep, out, resume=False)
        assert choose_sweep_directory(sweep, out, resume=True) == out


def test_another_sweeps_folder_is_refused(swept, tmp_path):
    run_sweep(swept({"seed": [0]}), tmp_path / "out")
    other = swept({"seed": [1]}, name="other")
    with pytest.raises(RunError, match=r"'other'.*--out"):
        run_sweep(other, tmp_path / "out", resume=True)
    assert [cell.name for cell in SweepDirectory.load(tmp_path / "out").cells] == ["seed=0"]


def test_a_run_does_not_resume_a_sweep_of_its_name(swept, tmp_path):
    sweep = swept({"seed": [0]}, output={"root": str(tmp_path)})
    (tmp_path / "small_seed-0").mkdir()
    (tmp_path / "small_seed-0" / "sweep.json").touch()
    given = sweep.cells[0].scenario
    assert choose_run_directory(given, None, resume=True).name == "small_seed-0-2"


@pytest.mark.parametrize(
    ("threads", "processors", "jobs"),
    [([1, 1, 1], 2, 2), ([1, 1], 8, 2), ([2, 1, 1], 8, 3), ([3, 3], 5, 1), ([8], 2, 1),
     ([1, None, 1], 8, 1)],
)  # fmt: skip
def test_cells_at_a_time_by_default(swept, monkeypatch, threads, processors, jobs):
    sweep = swept({"zip": {"threads": threads, "seed": list(range(len(threads)))}})
    monkeypatch.setattr(plan, "count_processors", lambda: processors)
    assert choose_jobs(sweep) == jobs


def test_a_damaged_sweep_file_says_so(swept, tmp_path):
    for text in ("", "[]", '{"name": "x"}', '{"cells": [{"nam": 1}]}'):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(RunError, match=r"cannot read .*sweep\.json"):
            run_sweep(swept({"seed": [0]}), tmp_path, resume=True)


@pytest.mark.ray
@pytest.mark.usefixtures("without_hosts")
def test_workers_come_to_the_same_and_one_that_dies_is_replaced(swept, tmp_path, plugin, capfd):
    import ray

    plugins = [plugin(PLUGIN)]
    fatal = [{"kind": "fatal"}]
    methods = [fatal, [], [{"kind": "divide"}], []]
    sweep = swept({"zip": {"method": methods, "seed": [0, 0, 1, 1]}}, plugins)
    inline = run_sweep(sweep, tmp_path / "inline")
    (tmp_path / "armed").touch()
    heard = Heard()
    beside = run_sweep(sweep, tmp_path / "beside", jobs=2, watch=heard)
    assert not ray.is_initialized()
    assert capfd.readouterr() == ("", "")
    raw = ["method=raw,seed=0", "method=raw,seed=1"]
    assert list(beside.runs) == raw
    for name in raw:
        assert tables(inline.runs[name].path) == tables(beside.runs[name].path)
        assert beside.runs[name].plugins is sweep.plugins
    assert set(beside.failed) == {"method=fatal,seed=0", "method=divide,seed=1"}
    died = beside.failed["method=fatal,seed=0"]
    assert "process died" in died
    assert "ZeroDivisionError" in beside.failed["method=divide,seed=1"]
    starts = [cell for what, cell in heard.events if what == "starts"]
    assert starts == [cell.name for cell in sweep.cells]

    (tmp_path / "armed").unlink()
    kept = contents(tmp_path / "beside" / raw[0])
    again = run_sweep(sweep, tmp_path / "beside", jobs=2, resume=True)
    assert set(again.failed) == {"method=divide,seed=1"}
    assert contents(tmp_path / "beside" / raw[0]) == kept
    fatal_run = "method=fatal,seed=0"
    assert tables(inline.runs[fatal_run].path) == tables(again.runs[fatal_run].path)
    document = json.loads((tmp_path / "beside" / "sweep.json").read_text())
    assert document["failed"] == again.failed


def test_cells_that_fail_alike_are_reported_in_one_line(tmp_path):
    failed = {f"seed={seed}": "data.source.path: not there\ntrace" for seed in range(6)}
    reasons = SweepResult(tmp_path, {}, {**failed, "hot": "round 1: loss is nan"}).why()
    assert reasons.splitlines() == [
        "7 of 7 cells failed",
        "  seed=0, seed=1, seed=2, seed=3 and 2 more: data.source.path: not there",
        "  hot: round 1: loss is nan",
    ]


@pytest.mark.ray
@pytest.mark.usefixtures("without_hosts")
def test_a_cluster_within_a_cluster_is_the_same_one():
    import ray

    from simsplit.engine.cluster import run_with_cluster

    with run_with_cluster(None, processors=3):
        with run_with_cluster(None, processors=1):
            assert ray.cluster_resources()["CPU"] == 3
        with pytest.raises(ScenarioError), run_with_cluster("127.0.0.1:9"):
            pass  # another cluster was asked for, and none is there
        assert ray.is_initialized()
    assert not ray.is_initialized()

    def interrupt():
        with run_with_cluster(None, processors=1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert not ray.is_initialized()


@pytest.mark.ray
@pytest.mark.usefixtures("without_hosts")
@pytest.mark.parametrize(
    ("gist", "starts"),
    [("The current node timed out during startup.", 2), ("no space is left", 1)],
)
def test_a_cluster_that_is_late_is_started_once_more(gist, starts, monkeypatch):
    """Ray gives its processes half a minute, which they exceed on a machine that is busy."""
    import ray

    from simsplit.engine.cluster import run_with_cluster

    tries, init = [], ray.init

    def late(**options):
        tries.append(options)
        if len(tries) == 1:
            raise Exception(gist)  # noqa: TRY002 - as Ray does
        return init(**options)

    monkeypatch.setattr(ray, "init", late)
    if starts == 2:
        with run_with_cluster(None, processors=1):
            assert ray.is_initialized()
    else:
        with pytest.raises(Exception, match=gist), run_with_cluster(None, processors=1):
            pass
    assert len(tries) == starts
    assert not ray.is_initialized()
