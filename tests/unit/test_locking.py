"""One process at a time writes a directory; a lock goes with its process, and readers need none."""

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import experiment, run_to_end, scenario

from simsplit.errors import RunError
from simsplit.results import Run
from simsplit.results.locking import HOLDER, lock

HOLD = """
import sys, time
from pathlib import Path
from simsplit.results.locking import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
FEW = {"data": {"train_samples": 40}, "clients": {"count": 1}, "schedule": {"rounds": 1}}


def write(path: Path, **changes: object) -> Path:
    path.write_text(scenario(**{**FEW, **changes}).yaml())
    return path


def names_holder(err: str) -> bool:
    return f"process {os.getpid()} on {platform.node()} (" in err


@pytest.mark.parametrize("words", [("--out", "run"), ("--out", "run", "--resume")])
def test_a_second_run_is_refused(simsplit, tmp_path, words):
    file = write(tmp_path / "few.yaml")
    with lock(tmp_path / "run"):
        code, out, err = simsplit("run", file, *words)
    assert (code, out) == (2, "")
    assert names_holder(err)
    assert not (tmp_path / "run" / "scenario.yaml").exists()


def test_a_run_that_another_one_has_begun_meanwhile_is_not_written_over(tmp_path):
    """Both saw the directory free; the lock decides."""
    given = scenario(**FEW)
    late = experiment(given, tmp_path / "run")
    first = run_to_end(given, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run"):
        late.run(resume=False)
    assert len(Run.load(first.path).rounds) == 1


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_a_second_sweep_is_refused(simsplit, tmp_path, words):
    file = tmp_path / "swept.yaml"
    file.write_text("extends: quickstart\nsweep: {seed: [0, 1]}\n")
    with lock(tmp_path / "swept"):
        code, _, err = simsplit("sweep", file, "--out", "swept", *words)
    assert code == 2
    assert names_holder(err)


def test_a_second_attack_of_one_name_is_refused(simsplit, tmp_path):
    run = run_to_end(scenario(**FEW), tmp_path / "run")
    with lock(run.path / "attacks" / "unsplit"):
        code, _, err = simsplit("attack", "run", "--kind", "unsplit", "--set", "targets.count=1")
    assert code == 2
    assert names_holder(err)


def test_readers_are_free(simsplit, tmp_path):
    run = run_to_end(scenario(**FEW), tmp_path / "run")
    with lock(run.path):
        for words in (("show", "run"), ("compare", "run"), ("watch", "run")):
            assert simsplit(*words)[0] == 0
        assert simsplit("report", "run", "--out", "page.html")[0] == 0


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=rf"process {holder.pid} on "), lock(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (tmp_path / HOLDER).exists()  # as it was left
    with lock(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()
    assert not (tmp_path / HOLDER).exists()


@pytest.mark.parametrize("note", ["", "[1]", '{"pid": 1}', '{"command": 5}', "\xff"])
def test_a_holder_whose_note_says_nothing_is_refused_as_well(tmp_path, note):
    with lock(tmp_path):
        (tmp_path / HOLDER).write_text(note, encoding="latin-1")
        with pytest.raises(RunError, match="another process"), lock(tmp_path):
            pass


def test_a_lock_leaves_no_note_and_no_table(tmp_path):
    run = run_to_end(scenario(**FEW), tmp_path / "run")
    hidden = [file.name for file in run.path.iterdir() if file.name.startswith(".")]
    assert hidden == [".lock"]
    assert (run.path / ".lock").stat().st_size == 0
