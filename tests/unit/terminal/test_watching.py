"""`simsplit watch`: what is on the disk is shown as it grows, and how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from builders import StopAt, scenario
from commands import Command, wait_for_rounds, write_scenario
from gists import says

from simsplit import load_sweep, run, run_sweep
from simsplit.results.environment import describe_process, is_alive
from simsplit.results.read_tables import read_rows
from simsplit.rows import RoundRow
from simsplit.terminal.watching import read_snapshot


@pytest.fixture
def ended(finished):
    """A run that has finished; tests change copies of it."""
    return finished(scenario())


@pytest.fixture
def copied(finished, tmp_path):
    return finished.copy(scenario(), tmp_path / "run")


def rewrite(path, **values):
    """Rewrite fields of a run's summary, or of its process."""
    document = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**document, **values}))
    os.utime(path / "summary.json")


def give_to(path, process):
    document = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps({**document, "process": process}))
    os.utime(path / "environment.json", (0, 0))


def a_dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return {**describe_process(), "pid": process.pid}


def test_a_process_differs_from_a_dead_one_and_from_a_later_one_of_its_number():
    assert is_alive(describe_process()) is True
    assert is_alive({**describe_process(), "began": 1}) is False
    assert is_alive(a_dead_process()) is False
    assert is_alive({**describe_process(), "host": "elsewhere"}) is None
    assert is_alive(None) is None


def test_half_a_line_is_left_for_the_next_read(tmp_path):
    file = tmp_path / "rounds.csv"
    assert read_rows(file, RoundRow) == []
    file.write_text("round,train_loss,phase,test_accuracy\n1,0.5,train,\n2,0.25,tra")
    (row,) = read_rows(file, RoundRow)
    assert (row.round, row.train_loss, row.phase) == (1, 0.5, "train")
    assert "test_accuracy" not in row
    file.write_text("round,train_loss,phase,test_accuracy\n1,0.5,train,\n2,0.25\n")
    assert [row.round for row in read_rows(file, RoundRow)] == [1]


def test_a_finished_run_is_printed_and_left(simsplit, ended):
    code, out, err = simsplit("watch", ended)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == f"tiny: {ended}"
    assert lines[1].startswith("round 1/2  test accuracy ")
    assert "samples/s" in lines[1]
    assert lines[3].startswith("finished, 2 of 2 rounds, 0:0")
    assert lines[3].endswith(f"(simsplit show {ended})")


def test_a_killed_run_is_called_that_and_can_be_resumed_with_what_is_named(simsplit, copied):
    rewrite(copied, status="running")
    give_to(copied, a_dead_process())
    code, out, _ = simsplit("watch", copied)
    assert code == 1
    assert "killed, 2 of 2 rounds" in out
    command = out.splitlines()[-1].partition("simsplit ")[2].split()
    assert simsplit(*command, "-q") == (0, "", "")
    assert simsplit("watch", copied)[0] == 0


def test_a_failed_run_says_why(simsplit, copied):
    rewrite(copied, status="failed", reason="the disk is full")
    code, out, _ = simsplit("watch", copied)
    assert code == 1
    assert "failed, 2 of 2 rounds, 0:0" in out
    assert ": the disk is full" in out


def test_a_run_that_is_taken_up_again_is_not_over(copied):
    rewrite(copied, status="interrupted")
    assert read_snapshot(copied).status == "interrupted"
    os.utime(copied / "environment.json", (2**31, 2**31))  # later than the summary
    assert read_snapshot(copied).status == "running"


def test_what_is_no_run_is_refused(simsplit, tmp_path):
    code, _, err = simsplit("watch", tmp_path)
    assert code == 2
    assert "no run" in err


def test_remaining_time_follows_the_pace_so_far(copied):
    rewrite(copied, status="running", rounds=6)
    seen = read_snapshot(copied)
    each = seen.elapsed_s / 2
    assert each > 0
    assert seen.left_s == pytest.approx(4 * each, abs=each)


def test_a_sweep_is_watched_cell_by_cell(simsplit, tmp_path):
    text = scenario(schedule={"rounds": 1}).yaml() + "\nsweep: {seed: [0, 1]}\n"
    (tmp_path / "s.yaml").write_text(text)
    run_sweep(load_sweep(tmp_path / "s.yaml"), tmp_path / "all", jobs=1)
    code, out, _ = simsplit("watch", "all")
    assert code == 0
    assert "seed=1: finished, 1/1 rounds, test accuracy " in out
    assert out.splitlines()[-1] == "finished: 2 of 2 cells  (simsplit compare all)"
    shutil.rmtree(tmp_path / "all" / "seed=1")  # as if it had not come to it
    document = json.loads(Path("all/sweep.json").read_text())
    command = ["python", "sweep", "s.yaml", "--jobs", "1"]
    document["process"] = {**a_dead_process(), "command": command}
    Path("all/sweep.json").write_text(json.dumps(document))
    code, out, _ = simsplit("watch", "all")
    assert code == 1
    assert says(out.splitlines()[-2], "ended; ... 1 of 2 cells")
    assert out.splitlines()[-1].endswith("simsplit sweep s.yaml --jobs 1 --out all --resume")


def press_until_it_ends(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, and again if Python drops it, as it does of one that comes in a callback."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)  # reads on: who writes into a full pipe cannot end
            return


@pytest.mark.slow
def test_a_run_is_followed_from_another_process_until_it_is_killed(tmp_path):
    runs, watches = Command(tmp_path), Command(tmp_path, program=("simsplit", "watch"))
    given = scenario(schedule={"rounds": 4000}, checkpoint={"every": 0})
    try:
        runner = runs.start(write_scenario(given, tmp_path), "--out", "run", "-q")
        wait_for_rounds(tmp_path / "run", 1, runner)
        left = watches.start("run")
        watcher = watches.start("run")
        assert left.stdout is not None
        assert left.stdout.readline().startswith("tiny: run")
        press_until_it_ends(left)
        assert left.returncode == 0
        assert runner.poll() is None  # Ctrl-C leaves the watch, and not the run
        runner.kill()
        out, _ = watcher.communicate(timeout=60)
        assert watcher.returncode == 1
        assert "killed, " in out
        assert "simsplit run run/scenario.yaml --out run --resume" in out
        number = [line.split("/")[0] for line in out.splitlines() if line.startswith("round")]
        assert len(number) == len(set(number)) > 0
    finally:
        runs.kill()
        watches.kill()


def test_every_command_of_a_run_is_kept_with_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["simsplit", "run", "first"])
    with pytest.raises(KeyboardInterrupt):
        run(scenario(), tmp_path / "run", observers=[StopAt(7)])
    monkeypatch.setattr(sys, "argv", ["simsplit", "run", "second"])
    made = run(scenario(), tmp_path / "run", resume=True)
    document = made.environment
    assert document["command"] == ["simsplit", "run", "first"]
    assert [each["command"] for each in document["resumed"]] == [["simsplit", "run", "second"]]
    assert document["resumed"][0]["started"] >= document["started"]
    machine = ("platform", "processors", "instructions", "gpu")
    assert all(document["resumed"][0][fact] == document[fact] for fact in machine)
    assert document["process"]["pid"] == os.getpid()


@pytest.mark.parametrize("changes", [False, True])
def test_the_commit_is_that_of_the_working_folder(tmp_path, monkeypatch, changes, git_asked_once):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_asked_once() is None
    (tmp_path / "file").write_text("one")
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    for words in (("init", "-q"), ("add", "file"), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", *words], check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    if changes:
        (tmp_path / "file").write_text("two")
    assert git_asked_once() == head.stdout.strip() + ("-dirty" if changes else "")
    monkeypatch.setenv("PATH", "")
    assert git_asked_once() is None
