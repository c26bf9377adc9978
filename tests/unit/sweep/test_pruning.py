"""`sweep.optuna.pruner`: bad settings are given up early, by validation data alone."""

import json
import shutil

import pytest
from builders import TINY

from simsplit import Run, compare, load_sweep, rank, run, run_sweep
from simsplit.errors import ScenarioError
from simsplit.report.grouping import load_entries
from simsplit.results import SweepDirectory
from simsplit.scenario.files import dump, merge
from simsplit.scenario.search_config import Search
from simsplit.sweep import running
from simsplit.sweep.pruning import Curve, Judge, Trial
from simsplit.sweep.searching import _Study

pytest.importorskip("optuna")
GOOD, BAD = 0.003, 10.0
"""Rates of the server; at the second nothing is learned."""
SMALL = {
    "name": "search",
    "data": {"train_samples": 120, "test_samples": 40, "validation": 0.3},
    "clients": {"count": 2},
    "schedule": {"rounds": 4},
    "train": {
        "client": {"kind": "adam", "lr": 0.005},
        "server": {"kind": "adam", "lr": GOOD},
    },
    "output": {"figures": False},
}


@pytest.fixture
def make_sweep(tmp_path):
    def make(count=3, rates=(GOOD, BAD, 0.02), **options):
        optuna = {"count": count, "sampler": "random", "train.server.lr": list(rates), **options}
        optuna = {"pruner": "successive_halving", **optuna}
        sweep = {"optuna": {name: value for name, value in optuna.items() if value is not None}}
        (tmp_path / "s.yaml").write_text(dump(merge(TINY, {**SMALL, "sweep": sweep})))
        return load_sweep(tmp_path / "s.yaml")

    return make


LEARNS = [0.3, 0.6, 0.8, 0.9]
IDLE = [0.1, 0.1, 0.1, 0.1]


def give_up_at(pruner, curves, grace=1):
    """Judge settings one after the other; return where each was given up, or None."""
    earlier, ends = [], []
    for number, values in enumerate(curves):
        judged = Trial(Judge(pruner, grace, len(values), None, number, tuple(earlier)))
        reached, end = [], None
        for step, value in enumerate(values, 1):
            reached.append(value)
            if judged.report(value) and step < len(values):
                end = step
                break
        earlier.append(Curve(number, reached, judged.rungs, end is None))
        ends.append(end)
    return ends


@pytest.mark.parametrize("pruner", ["median", "successive_halving", "hyperband"])
def test_a_planted_bad_setting_is_given_up_early_and_the_best_never(pruner):
    better = [[value + number / 1000 for value in LEARNS] for number in range(12)]
    ends = give_up_at(pruner, [*better[:6], IDLE, *better[6:], IDLE])
    assert ends[12] is None, "the best is trained to its end"
    assert ends[6] is not None
    assert ends[13] is not None


def test_the_median_waits_for_five_settings_and_for_the_grace():
    assert give_up_at("median", [LEARNS] * 4 + [IDLE]) == [None] * 5
    assert give_up_at("median", [LEARNS] * 5 + [IDLE])[-1] == 1
    assert give_up_at("median", [LEARNS] * 5 + [IDLE], grace=3)[-1] == 3


def test_settings_of_the_same_batch_are_not_judged_against_each_other():
    ahead = [Curve(0, [0.9, 0.9], {"completed_rung_0": 0.9})]
    assert not Trial(Judge("successive_halving", 1, 4, None, 1, ())).report(0.1)
    assert Trial(Judge("successive_halving", 1, 4, None, 1, tuple(ahead))).report(0.1)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of which a setting that learns nothing was given up, and its sweep."""
    folder = tmp_path_factory.mktemp("pruned")
    optuna = {
        "count": 2,
        "sampler": "random",
        "pruner": "successive_halving",
        "train.server.lr": [BAD, GOOD],
    }
    (folder / "s.yaml").write_text(dump(merge(TINY, {**SMALL, "sweep": {"optuna": optuna}})))
    sweep = load_sweep(folder / "s.yaml")
    return sweep, run_sweep(sweep, folder / "out", jobs=1)


def test_what_was_given_up_says_so_and_is_no_failure(searched):
    _, result = searched
    (name,) = result.pruned
    assert not result.failed
    assert name not in result.runs
    given_up = Run.load(result.path / name)
    assert given_up.fields["train"]["server"]["lr"] == BAD
    assert given_up.summary["status"] == "pruned"
    assert given_up.summary["rounds_done"] == 1 < given_up.summary["rounds"]
    assert given_up.summary["reason"] == result.pruned[name]
    assert result.to_dict()["cells"][name]["status"] == "pruned"
    assert len(given_up.rounds) == 1


def test_tables_leave_it_out_by_name_and_the_ranking_marks_it(searched):
    _, result = searched
    (name,) = result.pruned
    entries, left_out = load_entries([result.path])
    assert [name in line for line in left_out] == [True]
    assert len(compare(result.path)) == len(entries) == 1
    ranked = rank(result.path)
    assert list(ranked["pruned"]) == [False, True]
    assert ranked["place"].isna().tolist() == [False, True]
    assert list(ranked["round"]) == [4, 1]


def test_a_resumed_search_equals_an_uninterrupted_one(searched, tmp_path, monkeypatch):
    sweep, whole = searched
    real, ended = running.train, []

    def train(scenario, path, judge=None):
        if len(ended) == 1:
            raise KeyboardInterrupt
        ended.append(path.name)
        return real(scenario, path, judge)

    monkeypatch.setattr(running, "train", train)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path / "out", jobs=1)
    monkeypatch.setattr(running, "train", real)
    resumed = run_sweep(sweep, tmp_path / "out", jobs=1, resume=True)
    assert resumed.pruned == whole.pruned
    for cell in SweepDirectory.load(whole.path).cells:
        for table in ("rounds.csv", "clients.csv", "wire.csv"):
            ours, theirs = (folder / cell.name / table for folder in (resumed.path, whole.path))
            assert ours.read_bytes() == theirs.read_bytes()
    first, second = (SweepDirectory.load(path) for path in (resumed.path, whole.path))
    assert first.cells == second.cells
    assert first.batches == second.batches


def test_a_search_stays_as_it_was_when_it_is_resumed_to_no_purpose(searched):
    sweep, whole = searched
    before = json.loads((whole.path / "sweep.json").read_text())
    again = run_sweep(sweep, whole.path, jobs=1, resume=True)
    assert again.pruned == whole.pruned
    after = json.loads((whole.path / "sweep.json").read_text())
    assert before["cells"] == after["cells"]


def test_a_setting_that_was_given_up_can_be_trained_to_its_end(searched, tmp_path):
    import shutil

    _, result = searched
    (name,) = result.pruned
    shutil.copytree(result.path / name, tmp_path / "one")
    trained = run(tmp_path / "one" / "scenario.yaml", tmp_path / "one", resume=True)
    assert trained.summary["status"] == "finished"
    assert trained.summary["rounds_done"] == 4


@pytest.mark.parametrize("sampler", ["tpe", "qmc"])
def test_the_sampler_of_a_resumed_search_goes_on_where_it_was(sampler):
    """Without training: a made-up figure says what a setting reaches."""
    fields = {"train.server.lr": {"log": [1e-5, 10.0]}}
    search = Search(fields, count=8, sampler=sampler, start=3)

    def go(study, tried, count):
        while len(tried) < count:
            for settings in study.choose(1, list(tried)):
                tried.append(settings)
                study.tell(settings, -abs(settings["train.server.lr"] - 0.02), None)

    whole, part = [], []
    go(_Study(search, seed=0), whole, 8)
    go(_Study(search, seed=0), part, 5)
    again, study = [], _Study(search, seed=0)
    for settings in part:
        study.choose_again([settings], list(again))
        again.append(settings)
        study.tell(settings, -abs(settings["train.server.lr"] - 0.02), None)
    go(study, again, 8)
    assert again == whole


@pytest.mark.parametrize(
    ("changes", "field", "gist"),
    [
        ({"pruner": "medain"}, "sweep.optuna.pruner", "did you mean 'median'?"),
        ({"figure": "bytes_total"}, "sweep.optuna.pruner", "validation_accuracy"),
        ({"figure": "test_accuracy"}, "sweep.optuna.figure", "validation"),
        ({"grace": 4}, "sweep.optuna.pruner", "grace is 4"),
        ({"grace": 0}, "sweep.optuna.grace", "got 0"),
        ({"pruner": None, "grace": 2}, "sweep.optuna.grace", "pruner"),
    ],
)
def test_what_it_cannot_judge_is_refused_by_path(make_sweep, changes, field, gist):
    with pytest.raises(ScenarioError) as refused:
        make_sweep(**changes)
    assert refused.value.field == field
    assert gist in refused.value.reason


def test_a_length_in_epochs_is_refused(make_sweep, monkeypatch):
    monkeypatch.setitem(SMALL, "schedule", {"epochs": 4, "rounds": None})
    with pytest.raises(ScenarioError, match=r"schedule\.rounds"):
        make_sweep()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("without_hosts")
def test_settings_in_other_processes_are_given_up_as_here(make_sweep, tmp_path):
    """Two at a time; then the second batch again, one after the other, to the same tables."""
    sweep = make_sweep(count=4, rates=(GOOD, 0.004, BAD, 2 * BAD))
    whole = run_sweep(sweep, tmp_path / "whole", jobs=2)
    directory = SweepDirectory.load(whole.path)
    assert list(directory.batches) == [2, 2]
    assert whole.pruned
    first = {cell.name for cell in directory.cells[:2]}
    assert not first & set(whole.pruned), "nothing came before them"
    shutil.copytree(whole.path, tmp_path / "again")
    for name in {cell.name for cell in directory.cells} - first:
        shutil.rmtree(tmp_path / "again" / name)
    again = run_sweep(sweep, tmp_path / "again", jobs=1, resume=True)
    assert again.pruned == whole.pruned
    for cell in directory.cells:
        ours, theirs = (folder / cell.name / "rounds.csv" for folder in (again.path, whole.path))
        assert ours.read_bytes() == theirs.read_bytes()
