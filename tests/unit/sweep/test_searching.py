"""`sweep.optuna`: settings are chosen by what earlier ones reached, on validation data alone."""

import json

import pytest
from builders import TINY
from gists import says

from simsplit import load_sweep, plan_sweep, run_sweep
from simsplit.errors import RunError, ScenarioError
from simsplit.results import SweepDirectory
from simsplit.scenario.files import dump, merge
from simsplit.sweep import running, searching

pytest.importorskip("optuna")
RATES = {"log": [1e-5, 10.0]}
SMALL = {
    "name": "search",
    "data": {"train_samples": 40, "test_samples": 20, "validation": 0.2},
    "clients": {"count": 2},
    "schedule": {"rounds": 1},
    "train": {"client": {"kind": "sgd"}, "server": {"kind": "sgd"}},
}


ENDED = {
    "name": "x",
    "status": "finished",
    "last": {"round": 1},
    "bytes": {"total": 1},
    "rounds_done": 1,
}


@pytest.fixture
def make_sweep(tmp_path):
    def make(count=6, fields=None, grid=None, **options):
        optuna = {"count": count, **options, **(fields or {"train.server.lr": RATES})}
        sweep = {"optuna": optuna, "grid": grid}
        (tmp_path / "s.yaml").write_text(dump(merge(TINY, {**SMALL, "sweep": sweep})))
        return load_sweep(tmp_path / "s.yaml")

    return make


@pytest.fixture
def reach(monkeypatch):
    """Has cells end at once; each reaches what a function says of its learning rate."""
    trained = []

    def make(value_of):
        def end(cells, directory, watch, judges):
            for cell in cells:
                trained.append(cell.settings["train.server.lr"])
                path = directory.run_path(cell.name)
                path.mkdir()
                (path / "scenario.yaml").write_text(cell.scenario.yaml())
                (path / "summary.json").write_text(json.dumps(ENDED))
                yield cell.name, running.Ended()

        def read(search, sweep, directory, settings):
            assert directory.cells, "what was tried is written before a value is read"
            return value_of(settings["train.server.lr"])

        monkeypatch.setattr(running, "_train_in_turn", end)
        monkeypatch.setattr(searching, "_read_value", read)
        monkeypatch.setattr(running, "_collect_result", lambda sweep, directory: sweep)
        return trained

    return make


def measure_distance(rate):
    from math import log10

    return -abs(log10(rate) - log10(0.02))


@pytest.mark.slow
def test_it_finds_a_planted_best_where_random_draws_do_not(make_sweep, reach, tmp_path):
    trained = reach(measure_distance)
    run_sweep(make_sweep(40, start=8), tmp_path / "tpe", jobs=1)
    chosen, trained[:] = list(trained), []
    run_sweep(make_sweep(40, sampler="random"), tmp_path / "random", jobs=1)
    ours, theirs = (
        sum(abs(measure_distance(rate)) < 0.5 for rate in rates[8:]) for rates in (chosen, trained)
    )
    assert len(chosen) == len(trained) == 40
    assert ours > 2 * theirs, "it looks around the best, where random draws look everywhere"


def test_a_search_goes_on_from_its_directory_and_grows(make_sweep, reach, tmp_path):
    trained = reach(measure_distance)
    run_sweep(make_sweep(5), tmp_path / "out", jobs=1)
    first = list(trained)
    run_sweep(make_sweep(9), tmp_path / "out", jobs=1, resume=True)
    assert trained[:5] == first
    assert len(trained) == len(set(trained)) == 9, "nothing is trained twice"
    cells = SweepDirectory.load(tmp_path / "out").cells
    assert [cell.settings["train.server.lr"] for cell in cells] == trained


@pytest.mark.parametrize(
    "case",
    [
        ({"train.batch_size": [8, 16]}, {"train.batch_size": [16, 32]}, "has tried 8"),
        ({}, {"train.batch_size": [8, 16]}, "train.batch_size ... not had it"),
        ({"train.server.lr": RATES}, "narrow", "has tried"),
    ],
)
def test_a_search_with_other_fields_is_another(make_sweep, reach, tmp_path, case):
    before, after, gist = case
    reach(measure_distance)
    rate = {"train.server.lr": RATES}
    run_sweep(make_sweep(2, {**rate, **before}), tmp_path / "out", jobs=1)
    rate = {"train.server.lr": {"log": [1e-9, 1e-8]}} if after == "narrow" else rate | after
    with pytest.raises(RunError) as caught:
        run_sweep(make_sweep(3, rate), tmp_path / "out", jobs=1, resume=True)
    assert says(str(caught.value), gist)


def test_batches_stay_while_a_search_is_read_again(make_sweep, reach, tmp_path, monkeypatch):
    """A command that is stopped then leaves what its cells were judged beside."""
    reach(measure_distance)
    run_sweep(make_sweep(6), tmp_path / "out", jobs=1)
    whole = list(SweepDirectory.load(tmp_path / "out").batches)
    assert len(whole) > 1

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "_read_value", stop)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(make_sweep(6), tmp_path / "out", jobs=1, resume=True)
    assert list(SweepDirectory.load(tmp_path / "out").batches) == whole


def test_a_cell_that_failed_is_not_trained_again_with_every_batch(
    make_sweep, tmp_path, monkeypatch
):
    tried = []

    def end(cells, directory, watch, judges):
        for cell in cells:
            tried.append(cell.name)
            yield cell.name, running.Ended("it diverged")

    monkeypatch.setattr(running, "_train_in_turn", end)
    result = run_sweep(make_sweep(4), tmp_path / "out", jobs=1)
    assert len(result.failed) == len(tried) == len(set(tried)) == 4


def test_what_is_swept_beside_a_search_is_not_averaged_away(make_sweep, monkeypatch):
    make_sweep(grid={"seed": [0, 1]})
    with pytest.raises(ScenarioError, match=r"train\.batch_size beside it"):
        make_sweep(grid={"train.batch_size": [4, 8]})


def test_a_plan_says_that_the_cells_are_examples(make_sweep):
    planned = plan_sweep(make_sweep(2), timing=False)
    assert len(planned.cells) == 2
    assert planned.to_dict()["notes"]


def test_a_list_is_searched_until_it_has_no_more(make_sweep, reach, tmp_path):
    trained = reach(lambda rate: rate)
    run_sweep(
        make_sweep(3, {"train.server.lr": [0.1, 0.2, 0.3]}, sampler="random"),
        tmp_path / "out",
        jobs=1,
    )
    assert sorted(trained) == [0.1, 0.2, 0.3]


def test_cells_are_trained_and_their_mean_validation_figure_chooses(make_sweep, tmp_path):
    sweep = make_sweep(2, {"train.server.lr": [0.5, 0.0001]})
    result = run_sweep(sweep, tmp_path / "out", jobs=1)
    assert len(result.runs) == 2
    whole = sweep.try_settings([{"train.server.lr": 0.5}, {"train.server.lr": 0.0001}])
    directory = SweepDirectory.load(tmp_path / "out")
    for cell in whole.cells:
        run = result.runs[cell.name]
        value = searching._read_value(sweep.search, whole, directory, cell.settings)
        assert value == run.summary["best_on_validation"]["validation_accuracy"]


@pytest.mark.parametrize(
    ("changes", "field", "gist"),
    [
        ({"figure": "test_accuracy"}, "sweep.optuna.figure", "test data"),
        ({"sampler": "tpee"}, "sweep.optuna.sampler", "did you mean 'tpe'?"),
        ({"start": 0}, "sweep.optuna.start", "got 0"),
        ({"count": 0}, "sweep.optuna.count", "got 0"),
        ({"fields": {"train.server.lr": {"log": [0, 1]}}}, "sweep.optuna.train.server.lr.log", "0"),
    ],
)
def test_what_it_cannot_do_is_refused_by_path(make_sweep, changes, field, gist):
    with pytest.raises(ScenarioError) as refused:
        make_sweep(**{"count": 3, **changes})
    assert refused.value.field == field
    assert gist in refused.value.reason


def test_without_validation_data_it_has_nothing_to_choose_by(make_sweep, monkeypatch):
    monkeypatch.setitem(SMALL, "data", {"train_samples": 40, "test_samples": 20})
    with pytest.raises(ScenarioError, match=r"data\.validation"):
        make_sweep()


def test_the_package_is_asked_for_by_its_extra(make_sweep, monkeypatch):
    from simsplit.scenario import search_config as form

    monkeypatch.setattr(form, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"\[search\]"):
        make_sweep()
