"""`simsplit sweep`, and what the other commands make of a file or a folder with cells in it."""

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from builders import TINY
from gists import says

from simsplit.results import Run
from simsplit.scenario.files import dump, merge

SGD = {"kind": "sgd", "lr": 0.1}
SMALL = merge(
    TINY,
    {
        "name": "small",
        "data": {"train_samples": 40, "test_samples": 20},
        "clients": {"count": 2},
        "train": {"client": SGD, "server": SGD},
        "schedule": {"rounds": 1},
        "method": [{"kind": "lightsplit", "ratio": 8}],
        "sweep": {"method.0.ratio": [8, 16], "seed": [0, 1]},
    },
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(dump(SMALL))
    return path


@pytest.fixture
def swept(simsplit, file):
    """A finished sweep, and what its command printed."""
    code, out, err = simsplit("sweep", file, "--jobs", 1)
    assert code == 0
    return out, err


@pytest.mark.slow
def test_a_sweep_says_how_it_goes_and_ends_with_its_table(swept, tmp_path):
    out, err = swept
    assert err.splitlines()[:3] == [
        "4 cells", "sweep directory: runs/small", "ratio=8,seed=0: starts"
    ]  # fmt: skip
    assert err.splitlines()[3].startswith("ratio=8,seed=0: finished, 1/1 rounds, test accuracy ")
    assert err.splitlines()[-1].endswith("(4 of 4 done)")
    assert "seed by seed" in out
    assert "against ratio=8" in " ".join(out.split())
    assert [line.split()[0] for line in out.splitlines() if "lightsplit" in line] == ["8", "16"]
    assert out.rstrip().endswith("(simsplit compare runs/small)")
    assert sorted(path.name for path in (tmp_path / "runs" / "small").glob("[!.]*")) == [
        "ratio=16,seed=0", "ratio=16,seed=1", "ratio=8,seed=0", "ratio=8,seed=1", "sweep.json"
    ]  # fmt: skip


def read_rows(simsplit, *words):
    code, out, err = simsplit("compare", *words, "--format", "csv")
    assert (code, err) == (0, "")
    return list(csv.DictReader(io.StringIO(out)))


@pytest.mark.slow
def test_a_finished_sweep_is_compared_in_every_form(simsplit, swept):
    rows = read_rows(simsplit, "runs/small")
    assert [(row["ratio"], row["method"], row["seeds"]) for row in rows] == [
        ("8", "lightsplit 8 fixed", "2"), ("16", "lightsplit 16 fixed", "2")
    ]  # fmt: skip
    assert float(rows[0]["bytes_ratio"]) == 1.0
    assert 0 < float(rows[0]["test_accuracy_mean"]) < 1
    assert "| 16 | lightsplit 16 fixed | 2 |" in simsplit(
        "compare", "runs/small", "--format", "markdown"
    )[1]  # fmt: skip
    assert "lightsplit 16 fixed" in simsplit("compare", "runs/small", "--format", "latex")[1]
    assert (
        float(read_rows(simsplit, "runs/small", "--baseline", "ratio=16")[1]["bytes_ratio"]) == 1.0
    )
    code, _, err = simsplit("compare", "runs/small", "--baseline", "ratio=3")
    assert (code, says(err, "--baseline: ... no finished cell")) == (2, True)
    last = read_rows(simsplit, "runs/small", "runs/small/ratio=8,seed=0")[2]
    assert (last["run"], last["ratio"], last["seeds"]) == ("small_ratio-8_seed-0", "", "1")


def test_resuming_a_finished_sweep_keeps_all_of_it(simsplit, swept, file):
    code, out, err = simsplit("sweep", file, "--resume", "--jobs", 1)
    assert (code, out) == (0, swept[0])
    assert err.splitlines()[2:] == [
        f"ratio={ratio},seed={seed}: kept  ({index} of 4 done)"
        for index, (ratio, seed) in enumerate([(8, 0), (8, 1), (16, 0), (16, 1)], start=1)
    ]
    assert not (file.parent / "runs" / "small-2").exists()
    code, _, err = simsplit("sweep", file, "--out", "runs/small")
    assert code == 2
    assert says(err, "error: runs/small already ... --out ... --resume")
    code, _, err = simsplit(
        "sweep", file, "--out", "runs/small", "--resume", "--set", "train.batch_size=9"
    )
    assert code == 2
    assert "cell ratio=8,seed=0: " in err
    assert "train.batch_size was 16, is 9" in err


def test_json_is_all_that_stdout_has(simsplit, file):
    code, out, err = simsplit(
        "sweep", file, "--json", "--jobs", 1, "--out", "x", "--set", "sweep.seed=[4]"
    )
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["path"] == "x"
    assert document["cells"] == {
        name: Run.load(f"x/{name}").summary for name in ("ratio=8,seed=4", "ratio=16,seed=4")
    }


def test_an_override_of_what_is_swept_is_noted_as_void(simsplit, file):
    fields = ["--set", "seed=9", "--set", "sweep.seed=[4]", "--set", "sweep.method.0.ratio=[8]"]
    code, _, err = simsplit("sweep", file, "--jobs", 1, *fields)
    assert code == 0
    assert "note: seed " in err.splitlines()[0]
    assert simsplit("sweep", file, "-q", "--jobs", 1, "--out", "y", *fields[2:]) == (0, "", "")


@pytest.mark.slow
def test_failed_cells_are_listed_and_exit_code_1(simsplit, file):
    hot = ["--set", "sweep={zip: {train.client.lr: [1e30, 0.1], train.server.lr: [1e30, 0.1]}}"]
    code, out, err = simsplit("sweep", file, "--jobs", 1, *hot, "--set", "schedule.rounds=3")
    assert code == 1
    assert "error: 1 of 2 cells failed (see simsplit explain " in err
    assert "\n  client.lr=1e+30,server.lr=1e+30: round " in err
    words = shlex.split(err.splitlines()[-1].partition(": ")[2])
    assert words[:5] == ["simsplit", "sweep", str(file), "--out", "runs/small"]
    assert "simsplit compare runs/small" in out
    assert "lightsplit" in out
    code, _, err = simsplit(*words[1:])
    assert code == 1
    assert "client.lr=0.1,server.lr=0.1: kept" in err
    code, out, err = simsplit("compare", "runs/small")
    assert code == 0
    assert err.startswith("left out: runs/small/client.lr=1e+30,server.lr=1e+30 failed: round ")


def test_a_sweep_of_which_all_fails_has_no_table(simsplit, file):
    hot = "{kind: sgd, lr: 1e30}"
    hot = ["--set", f"train.client={hot}", "--set", f"train.server={hot}"]
    options = ("--set", "schedule.rounds=3", "--set", "sweep.seed=[0]")
    code, out, err = simsplit("sweep", file, "--jobs", 1, *hot, *options)
    assert code == 1
    assert "error: 2 of 2 cells failed" in err
    assert says(out, "runs/small ... simsplit compare runs/small")
    code, _, err = simsplit("compare", "runs/small")
    assert (code, says(err, "runs/small: ... no cell")) == (2, True)


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["run", "{file}"], "{file} ... 4 cells ... simsplit sweep {file}"),
        (["sweep", "{file}", "--set", "sweep.sed=[1,2]"], "scenario.sed: unknown field, did you "),
        (["sweep", "{file}", "--set", "sweep=null"], "error: scenario.sweep: {file} has none"),
        (["sweep", "{file}", "--set", "sweep.seed=[]"], "scenario.sweep.seed: ... at least"),
        (["sweep", "{file}", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["sweep", "{file}", "--set", "x"], "error: --set takes FIELD=VALUE, got 'x'"),
        (["validate", "{file}", "--set", "sweep.seed=[0, a]"], "(in cell ratio=8,seed=a and 1 "),
    ],
)  # fmt: skip
def test_what_a_user_can_mend_is_a_line_and_exit_code_2(simsplit, file, words, gist):
    code, out, err = simsplit(*(word.format(file=file) for word in words))
    assert (code, out) == (2, "")
    assert says(err, gist.format(file=file))
    assert "Traceback" not in err
    assert not (file.parent / "runs").exists()


def test_validate_counts_and_names_the_cells(simsplit, file):
    code, out, _ = simsplit("validate", file)
    valid, cells = out.splitlines()
    assert (code, says(valid, f"{file}: ... valid sweep ... 4 cells")) == (0, True)
    assert cells == "ratio=8,seed=0  ratio=8,seed=1  ratio=16,seed=0  ratio=16,seed=1"
    _, out, _ = simsplit("validate", file, "--set", "sweep.seed=[0,1,2,3]")
    assert out.splitlines()[1].endswith("  ratio=16,seed=1 and 2 more")
    assert says(simsplit("validate", file, "--set", "sweep=null")[1], f"{file}: ... valid scenario")
    code, out, _ = simsplit("run", file, "--set", "sweep=null", "-q")
    assert code == 0


@pytest.mark.parametrize("jobs", [pytest.param(2, marks=pytest.mark.ray)])
def test_an_interrupted_sweep_goes_on_with_the_command_that_it_names(simsplit, file, jobs):
    """Ctrl-C, as a terminal sends it: to the process that runs the command and all its children."""
    flags = ["--set", "schedule.rounds=6", "--set", "train.batch_size=2", "--jobs", str(jobs)]
    running = subprocess.Popen(
        [sys.executable, "-m", "simsplit", "sweep", str(file), *flags],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=file.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    done = None
    for line in running.stderr:
        if ": finished" in line:
            done = line.partition(":")[0]
        elif done and line.endswith(": starts\n"):
            break
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    words = shlex.split(err.splitlines()[-1].partition(": ")[2])
    assert words[:2] == ["simsplit", "sweep"]
    finished = f"runs/small/{done}"
    assert Run.load(finished).summary["status"] == "finished"
    with pytest.raises(ProcessLookupError):  # its group has nobody left
        os.killpg(running.pid, 0)
    before = Run.load(finished).summary
    words[words.index("--jobs") + 1] = "1"
    code, out, err = simsplit(*words[1:])
    assert code == 0
    assert f"{done}: kept" in err
    assert Run.load(finished).summary == before
    assert Run.load("runs/small/ratio=16,seed=1").rounds["round"].tolist() == list(range(1, 7))
