"""Plans of very many rounds and of very large models are answered, or refused, at once."""

import time
from itertools import count
from typing import Any

import pytest
from builders import run_to_end, scenario
from gists import gist
from pandas.testing import assert_frame_equal

import simsplit
from simsplit.errors import ScenarioError
from simsplit.evaluation.evaluator import EvaluateConfig
from simsplit.forecasting import drafting
from simsplit.forecasting.drafting import find_period
from simsplit.forecasting.forecast import Forecast
from simsplit.models import fresh
from simsplit.results import Run
from simsplit.scenario import Scenario, load_scenario

PERIODIC: dict[str, dict[str, Any]] = {
    "shared heads": {"schedule": {"rounds": 61}, "evaluate": {"every": 4}},
    "own heads": {
        "clients": {"heads": "per_client"},
        "schedule": {"rounds": 70, "local_steps": 4},
        "evaluate": {"every": 3},
        "network": {"device": {"phone": 0.5, "laptop": 0.5}, "spread": 0.5},
    },
    "averages": {
        "schedule": {"kind": "parallel", "rounds": 50},
        "aggregation": {"kind": "splitfed_v2", "bits": 4},
        "evaluate": {"every": 0},
    },
    "evaluations beyond the period": {"schedule": {"rounds": 130}, "evaluate": {"every": 23}},
}
TABLES = ("bytes", "clients", "times", "flops")


def plan(given: Scenario) -> Forecast:
    return simsplit.plan(given, timing=False)


@pytest.mark.parametrize("changes", PERIODIC.values(), ids=PERIODIC)
def test_a_plan_of_some_rounds_equals_that_of_all(changes, monkeypatch):
    whole = plan(scenario(**changes))
    monkeypatch.setattr(drafting, "MOST_PLAYED", 48)
    monkeypatch.setattr(drafting, "ENOUGH_PLAYED", 40)
    some = plan(scenario(**changes))
    assert len(some.rounds) < len(whole.rounds)
    assert some.num_rounds == whole.num_rounds
    assert some.rounds["times"].sum() == whole.num_rounds
    assert some.rounds["bytes_total"].iloc[-1] == whole.bytes_total == some.bytes_total
    assert some.times_s == pytest.approx(whole.times_s)
    for name in TABLES:
        assert_frame_equal(getattr(some, name), getattr(whole, name))
    assert some.facts.notes == whole.facts.notes


def test_rounds_of_parties_that_drop_out_are_those_of_their_batches(tmp_path):
    """Parties that were away go on with the others' batches, of which the last one is smaller."""
    given = scenario(
        seed=50,
        topology="vertical",
        vertical={"party": 1},
        clients={"count": 2, "heads": "per_client"},
        model={"kind": "mlp"},
        data={"partition": {"kind": "parts", "parts": 2}, "train_samples": 50, "test_samples": 20},
        schedule={"kind": "round_robin", "rounds": 19, "local_steps": 2},
        train={"batch_size": 12},
        cohort={"dropout": 0.7},
    )
    run_to_end(given, tmp_path / "run")
    assert plan(given).bytes_total == Run.load(tmp_path / "run").rounds["bytes_total"].iloc[-1]


@pytest.mark.parametrize("cohort", [{"fraction": 0.4}, {"dropout": 1e-9}])
def test_rounds_that_are_drawn_anew_are_estimated_and_the_plan_says_so(cohort, monkeypatch):
    changes = {"schedule": {"rounds": 200}, "cohort": cohort, "clients": {"count": 5}}
    whole = plan(scenario(**changes))
    monkeypatch.setattr(drafting, "MOST_PLAYED", 48)
    monkeypatch.setattr(drafting, "ENOUGH_PLAYED", 40)
    some = plan(scenario(**changes))
    assert (some.num_rounds, len(some.rounds) < 70) == (200, True)
    assert some.bytes_total == pytest.approx(whole.bytes_total, rel=0.1)
    (note,) = set(some.facts.notes) - set(whole.facts.notes)
    assert "41 to 199" in note


def test_a_billion_rounds_are_planned():
    made = plan(scenario(schedule={"rounds": 10**9}, evaluate={"every": 7}))
    one = plan(scenario(schedule={"rounds": 15}, evaluate={"every": 7})).bytes
    per_round = one["training"].sum() / 15
    assert made.num_rounds == 10**9
    assert made.bytes_total / 10**9 == pytest.approx(per_round, rel=0.01)


@pytest.mark.parametrize("every", [0, 1, 3, 10])
@pytest.mark.parametrize("rounds", [0, 1, 9, 10, 12])
def test_evaluations_are_counted_without_a_loop(every, rounds):
    config = EvaluateConfig(every=every)
    due = sum(config.due(number, rounds) for number in range(1, rounds + 1)) or 1
    assert config.count_due(rounds) == due


def test_a_period_is_that_of_the_last_half():
    assert find_period([9, 9, 9, 9, 9, 9, 1, 2, 3, 1, 2, 3]) == 3
    assert find_period([5] * 10) == 1
    assert find_period([9, 9, 9, 9, 9, 9, 1, 2, 3, 1, 2, 4]) is None
    assert find_period([1, 2] * 3 + [1, 2, 3] + [1, 2, 3, 1, 2, 3, 1, 2, 3]) == 3
    assert find_period([]) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule.rounds", 10**17),
        ("schedule.epochs", 1e17),
        ("schedule.local_steps", 10**17),
        ("model.layers", 10**7),
        ("model.width", 10**9),
    ],
)
def test_a_number_beyond_its_bound_is_refused_by_its_field(field, value):
    with pytest.raises(ScenarioError) as caught:
        load_scenario("quickstart", {"model": {"kind": "vit"}, field: value})
    assert caught.value.field == field
    assert any(each in caught.value.reason for each in ("1,000,000", "1000", "1e+09"))


def test_a_round_of_too_many_steps_is_refused():
    with pytest.raises(ScenarioError, match=gist("schedule: ... 2,000,000")):
        plan(scenario(schedule={"rounds": 1, "local_steps": 10**9}))


HUGE = {
    "mlp": {"widths": [300_000, 300_000]},
    "vit": {"width": 64_000},
    "image_classifier": {"sizes": {"width": 64_000}},
    "resnet20": {"width": 60_000},
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_model_that_no_memory_holds_is_refused_before_it_is_made(kind):
    given = load_scenario("quickstart", {"model": {"kind": kind, **HUGE[kind]}})
    with pytest.raises(ScenarioError, match="GiB") as caught:
        plan(given)
    assert caught.value.field == "model"


def test_weights_are_made_unless_memory_lacks(monkeypatch):
    segments = scenario().model.build((1, 28, 28), 10, 0)
    assert sum(p.numel() for p in segments.trunk.parameters()) > 0
    monkeypatch.setattr(fresh, "_SMALL", 0)
    monkeypatch.setattr(fresh, "read_free_bytes", lambda device: 1000)
    with pytest.raises(ScenarioError, match="model"):
        scenario().model.build((1, 28, 28), 10, 0)


def test_widths_are_bounded_each():
    with pytest.raises(ScenarioError, match=gist("model.widths: ... 1,000,000")):
        plan(scenario(model={"kind": "mlp", "widths": [64, 10**12]}))


def test_evaluation_is_timed_in_its_own_batches(monkeypatch):
    """Clients with two samples each train in batches of two, and are scored in larger ones."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    changes = {"clients": {"count": 45, "heads": "per_client"}, "schedule": {"rounds": 1}}
    made = simsplit.plan(scenario(**changes, evaluate={"batch_size": 20}))
    assert made.facts.evaluate_s == 45 * 40 / 20  # a batch takes one tick
