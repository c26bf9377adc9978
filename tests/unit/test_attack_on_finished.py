"""Attacks on a run that is over: the same as in the run, from a shell, and if interrupted."""

import json
import shutil

import pytest
from builders import run_to_end, scenario
from pace import quick
from parity.test_recovery import OFFLINE, make_attacked

from simsplit import Run
from simsplit.attacking.finished import attack
from simsplit.errors import RunError, ScenarioError


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return run_to_end(make_attacked(attacks=OFFLINE), tmp_path_factory.mktemp("runs") / "run").path


def of(run: Run, attack: str, number: int = 3):
    table = run.recovered
    rows = table[(table["attack"] == attack) & (table["round"] == number)]
    return rows.drop(columns="attack").reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.parametrize("fields", OFFLINE, ids=lambda fields: fields["kind"])
@pytest.mark.parametrize("stops", quick([False, True], True))
def test_it_recovers_what_it_does_at_the_end_of_the_run(run_dir, monkeypatch, fields, stops):
    """Its streams go by its name, so the first of a name is the one in the run."""
    changes = {name: str(value) for name, value in fields.items() if name != "kind"}
    folder = run_dir / "attacks" / fields["kind"]
    if stops:
        monkeypatch.setattr("simsplit.attacking.finished.KEEP_EVERY_S", 0.0)

        def stop(what, done, total):
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            attack(run_dir, fields["kind"], changes, progress=stop)
        assert (folder / "state").is_dir()
    attack(run_dir, fields["kind"], changes, resume=stops)
    ours = (folder / "leaks.csv").read_text().splitlines()
    in_run = [
        line
        for line in (run_dir / "leaks.csv").read_text().splitlines()
        if line.startswith(f"3,images,{fields['kind']}")
    ]
    assert [line for line in ours if f",{fields['kind']}," in line] == in_run
    assert not (folder / "state").exists()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_from_the_shell(run_dir, simsplit):
    changes = ("name=twice", "outer=2", "inner=1", "targets.count=3")
    words = [word for change in changes for word in ("--set", change)]
    code, out, err = simsplit("attack", run_dir, "--kind", "unsplit", *words)
    assert code == 0, err
    assert "twice: 6 of 6" in err
    assert "black image" in out
    assert (run_dir / "figures" / "twice.png").stat().st_size > 1000
    assert len(of(Run.load(run_dir), "twice")) == 3
    document = json.loads((run_dir / "attacks" / "twice" / "attack.json").read_text())
    assert document["attack"]["inner"] == 1
    code, _, err = simsplit("attack", run_dir, "--kind", "unsplit", "--set", "name=twice")
    assert code == 2
    assert "already holds" in err


@pytest.mark.slow
def test_going_on_with_what_is_finished_or_another(run_dir):
    """The first changes nothing; the second says what to do."""
    few = {"name": "again", "outer": "1", "inner": "1"}
    folder = attack(run_dir, "unsplit", few).path / "attacks" / "again"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    attack(run_dir, "unsplit", few, resume=True)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    with pytest.raises(RunError, match="other settings"):
        attack(run_dir, "unsplit", {**few, "outer": "2"}, resume=True)


@pytest.mark.parametrize(
    ("kind", "changes", "wrong", "gist"),
    [
        ("pcat", {}, RunError, "follows training"),
        ("unsplit", {"tune": "{lr: [0.01, 0.1]}"}, RunError, "tune"),
        ("unsplitt", {}, ScenarioError, "'unsplit'"),
        ("unsplit", {"outr": "1"}, ScenarioError, r"attacks.0.outr: unknown"),
        (
            "unsplit",
            {"targets.client": "9"},
            ScenarioError,
            r"targets.client:.*a client",
        ),
    ],
)
def test_what_cannot_be(run_dir, kind, changes, wrong, gist):
    with pytest.raises(wrong, match=gist):
        attack(run_dir, kind, changes)
    assert not (run_dir / "attacks" / kind).exists()


def test_attacks_are_scored_after_the_last_round_though_it_comes_early(tmp_path):
    given = scenario(
        schedule={"rounds": 6},
        stop={"metric": "test_accuracy", "patience": 1, "min_delta": 0.99},
        data={"auxiliary": 0.2},
        attacks=[{"kind": "ridge"}],
    )
    done = Run.load(run_to_end(given, tmp_path / "run").path)
    assert done.summary["rounds_done"] == 2
    assert {*done.leaks["round"]} == {2}
