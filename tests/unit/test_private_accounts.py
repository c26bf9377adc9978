"""Epsilon of weights that learn by `train.dp`: composed by hand, bounded by others, kept to."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import run_to_end, scenario
from gists import says
from scipy.integrate import quad
from scipy.special import comb, logsumexp
from scipy.stats import norm
from texts import text_scenario
from torch import nn

from simsplit.errors import BudgetSpentError, ScenarioError
from simsplit.experiment import Experiment
from simsplit.forecasting.planning import plan
from simsplit.legs import Leg
from simsplit.parties.sample_gradients import find_unfit
from simsplit.privacy import spending
from simsplit.privacy.accounting import (
    account,
    choose_guarantee,
    count_packets,
    list_guarantees,
    void_repeated,
)
from simsplit.privacy.composition import Releases, compose, find_multiplier
from simsplit.privacy.spending import find_account, make_noise
from simsplit.privacy.uncovered import list_uncovered
from simsplit.results import Run
from simsplit.scenario import Scenario

DELTA = 1e-5
DP = {"clip": 1.0, "multiplier": 2.0}
OWNED = {"kind": "simplecnn", "cut": "l1h", "learns": ["head", "tail"]}
WHOLE = {"kind": "simplecnn", "cut": "l1h"}
FORWARD = {"kind": "dp_forward", "epsilon": 2.0, "relative": False}
BACK = {"kind": "dp_sgd", "multiplier": 3.0, "relative": False}


def private(*methods: dict[str, Any], model: dict[str, Any] = OWNED, **changes: Any) -> Scenario:
    dp = {**DP, **changes.pop("dp", {})}
    train = {**changes.pop("train", {}), "dp": dp}
    return scenario(model=model, method=list(methods), train=train, **changes)


def delta_of(mu: float, epsilon: float) -> float:
    """Compute Balle and Wang's equation for a Gaussian of this distance, in its deviations."""
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


def test_different_gaussians_compose_as_their_precisions_add():
    parts = (Releases(3.0, 4), Releases(5.0, 7), Releases(0.9, 1))
    mu = math.sqrt(4 / 9 + 7 / 25 + 1 / 0.81)
    assert delta_of(mu, compose(parts, DELTA)) == pytest.approx(DELTA, rel=1e-6)
    assert compose((), DELTA) == 0


def integrate_replacement(multiplier: float, rate: float, epsilon: float) -> float:
    """Integrate the excess of one release with a sample over that with another, drawn at a rate.

    A sample moves the sum by at most one clipping norm: to 1 with it, to -1 with the other.
    """
    sigma = 2 * multiplier

    def excess(x: float) -> float:
        away = (1 - rate) * norm.pdf(x, 0, sigma)
        one = away + rate * norm.pdf(x, 1, sigma)
        other = away + rate * norm.pdf(x, -1, sigma)
        return max(0.0, one - math.exp(epsilon) * other)

    return float(quad(excess, -3, 12 * sigma, limit=400)[0])


@pytest.mark.parametrize(("multiplier", "rate"), [(0.3, 0.1), (0.5, 0.02), (1.0, 0.5)])
def test_one_drawn_release_has_the_delta_that_integration_gives(multiplier, rate):
    epsilon = compose((Releases(multiplier, 1, rate),), DELTA)
    assert integrate_replacement(multiplier, rate, epsilon) == pytest.approx(DELTA, rel=0.02)
    assert epsilon < compose((Releases(multiplier, 1),), DELTA), "drawing amplifies privacy"


def bound_by_renyi(sigma: float, rate: float, times: int) -> float:
    """Return Opacus' epsilon: Renyi's divergence of subsampled Gaussians at integer orders.

    The formula is that of Mironov et al. (2019), and the conversion that of Balle et al. (2020);
    Opacus 1.6 takes the same (`opacus/accountants/analysis/rdp.py`), with fractional orders too.
    """
    best = math.inf
    for order in range(2, 200):
        i = np.arange(order + 1)
        terms = np.log(comb(order, i)) + i * math.log(rate) + (order - i) * math.log1p(-rate)
        divergence = times * logsumexp(terms + i * (i - 1) / (2 * sigma**2)) / (order - 1)
        epsilon = divergence + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        best = min(best, epsilon)
    return best


@pytest.mark.parametrize(
    ("sigma", "rate", "times", "opacus"),
    [(2.0, 0.05, 500, 2.7686), (1.5, 0.1, 100, 3.9234)],
)
def test_renyi_accounting_lies_above_and_near(sigma, rate, times, opacus):
    """Neighbours of Opacus lack a sample; ours have another one, which is between one and two."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    left_out = PLDAccountant(value_discretization_interval=1e-3)
    left_out.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), times)
    exact, above = left_out.get_epsilon(DELTA), bound_by_renyi(sigma, rate, times)
    assert above == pytest.approx(opacus, rel=0.02), "what opacus 1.6 prints"
    assert exact < above < 1.3 * exact
    ours = compose((Releases(sigma / 2, times, rate),), DELTA)
    assert exact < ours < 2.3 * exact


def test_noise_that_is_found_keeps_to_its_budget():
    found = find_multiplier(3.0, DELTA, Releases(1.0, 300, 0.05))
    assert 2.95 < compose((Releases(found, 300, 0.05),), DELTA) <= 3.0


def test_weights_that_learn_privately_compose_with_noise_at_the_cut():
    given = private(FORWARD, BACK, model=WHOLE, dp={"delta": DELTA})
    alone = scenario(
        model={**WHOLE, "learns": ["trunk"]}, method=[FORWARD, BACK], train={"batch_size": 16}
    )
    chosen, without = choose_guarantee(given), choose_guarantee(alone)
    assert chosen is not None
    assert without is not None
    assert chosen.protects == without.protects
    mu = math.sqrt(3 * (without.multiplier**-2 + (2.0 / 2) ** -2))
    reached = chosen.open_account(1000).compute(3)
    assert delta_of(mu, reached) == pytest.approx(DELTA, rel=1e-6)
    assert all(not each.lacks for each in list_guarantees(given))


def test_an_input_is_not_seen_in_weights_that_labels_alone_reach():
    """A frozen head: the tail's gradients depend on labels, and on what the server sends."""
    tail = {**WHOLE, "learns": ["trunk", "tail"]}
    of_input, of_label, both = list_guarantees(private(FORWARD, BACK, model=tail))
    assert of_input.learning is None
    assert of_label.learning is not None
    assert both.learning is not None
    head = {**WHOLE, "learns": ["trunk", "head"]}
    of_input, of_label, both = list_guarantees(private(FORWARD, BACK, model=head))
    assert (of_input.learning is None, of_label.learning is None) == (False, True)
    assert both.learning is not None


def test_who_sees_weights_alone_needs_a_trunk_that_does_not_learn():
    (own,) = list_guarantees(private())
    assert own.lacks == ""
    assert says(own.protects, "weights alone")
    (lacking,) = list_guarantees(private(model=WHOLE))
    assert says(lacking.lacks, "trunk learns ... without noise")
    assert choose_guarantee(private(model=WHOLE)) is None
    (encoded,) = list_guarantees(private({"kind": "lightsplit"}))
    assert says(encoded.lacks, "lightsplit ... not accounted")
    (watched,) = list_guarantees(private(detectors=[{"kind": "krum", "response": "skip"}]))
    assert says(watched.lacks, "detectors")


def test_drawn_batches_amplify_only_where_nobody_sees_them():
    drawn = {"sampling": "poisson"}
    hidden, seen = private(dp=drawn), private(FORWARD, BACK, model=WHOLE, dp=drawn)
    accounts = [find_account(each, 100) for each in (hidden, seen)]
    assert [each.is_amplified for each in accounts if each] == [True, False]
    assert accounts[0].rate == 16 / 100
    assert find_account(private(), 100).rate == 1


def list_legs(given: Scenario) -> list[str]:
    return [each.leg for each in list_uncovered(given)]


def test_every_leg_without_a_guarantee_is_named_with_what_it_needs():
    assert list_legs(private()) == [Leg.SMASHED, Leg.FEATURES_GRAD]
    smashed, grads = list_uncovered(private())
    assert says(smashed.needs, "dp_forward ... relative: false")
    assert says(grads.needs, "dp_sgd")
    assert list_legs(private(FORWARD, BACK, model=WHOLE)) == []
    *_, weights = list_uncovered(private(FORWARD, model=WHOLE))
    assert says(weights.needs, "trunk learns")
    half = list_uncovered(scenario(model=WHOLE, method=[{**FORWARD, "relative": True}, BACK]))
    assert says(half[0].needs, "dp_forward ... depends")
    assert list_legs(scenario(model=WHOLE)) == [], "without noise nothing was promised"
    plain = scenario(model={**WHOLE, "learns": ["trunk", "tail"]}, method=[FORWARD])
    assert list_legs(plain) == [Leg.FEATURES_GRAD, f"{Leg.HANDOVER}, and weights"]
    assert says(list_uncovered(plain)[1].needs, "train.dp ... tail")
    vanilla = private(FORWARD, model=WHOLE, topology="vanilla")
    assert Leg.LABELS in list_legs(vanilla)


def test_each_client_finds_the_noise_of_its_budget():
    budget = {"multiplier": None, "epsilon": 4.0, "delta": 1e-3}
    for sampling in ("passes", "poisson"):
        given = private(dp={**budget, "sampling": sampling}, schedule={"rounds": 5})
        for samples in [60]:
            noise, account = make_noise(given, samples), find_account(given, samples)
            times = 5 * -(-samples // 16) if sampling == "poisson" else 5
            assert account.learning == noise.multiplier / 2
            assert 3.9 < account.compute(times) <= 4.0 * (1 + 1e-6)
    with pytest.raises(ScenarioError) as refused:
        make_noise(private(FORWARD, BACK, model=WHOLE, dp=budget, schedule={"rounds": 50}), 40)
    assert says(str(refused.value), "train.dp.epsilon ... 4 ... alone spends")


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"dp": {"epsilon": 8}}, "train.dp", "both"),
        ({"dp": {"multiplier": None}}, "train.dp", "neither"),
        ({"dp": {"clip": 0}}, "train.dp.clip", "0"),
        ({"dp": {"sampling": "shuffled"}}, "train.dp.sampling", "poisson"),
        ({"dp": {"sampling": "poisson"}, "train": {"accumulate": 2}}, "train.accumulate", "drawn"),
        ({"train": {"checkpointing": True}}, "train.checkpointing", "activations"),
        ({"model": {**WHOLE, "learns": ["trunk"]}}, "train.dp", "learn nothing"),
        ({"stop": {"metric": None}}, "stop", "metric or epsilon"),
        (
            {
                "dp": {"multiplier": None, "epsilon": 8},
                "schedule": {"rounds": None, "epochs": 3, "local_steps": 2},
            },
            "train.dp.epsilon",
            "schedule.rounds",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(fields, where, what):
    with pytest.raises(ScenarioError) as refused:
        private(**fields)
    assert says(str(refused.value), f"{where} ... {what}")


@pytest.mark.parametrize("kind", ["nopeek", "wcc", "mixguard"])
def test_methods_that_see_the_whole_batch_are_refused(kind):
    with pytest.raises(ScenarioError) as refused:
        private({"kind": kind}, data={"auxiliary": 0.2})
    assert says(str(refused.value), f"method.0.kind ... {kind} ... whole batch")


def test_batch_normalisation_that_learns_is_refused_and_group_norm_named(tmp_path):
    given = private(model={"kind": "simplecnn", "cut": "l2h", "learns": ["head"]})
    with pytest.raises(ScenarioError) as refused:
        Experiment(given, tmp_path)
    assert says(str(refused.value), "train.dp ... head ... BatchNorm2d ... GroupNorm")
    Experiment(private(model={"kind": "simplecnn", "cut": "l2h", "learns": ["tail"]}), tmp_path)


def test_a_budget_that_one_step_passes_is_refused_with_what_it_would_reach(tmp_path):
    with pytest.raises(ScenarioError) as refused:
        Experiment(private(stop={"epsilon": 0.5}), tmp_path)
    assert says(str(refused.value), "stop.epsilon ... 0.5 ... one step ... more noise")
    with pytest.raises(ScenarioError) as refused:
        Experiment(private(model=WHOLE, stop={"epsilon": 8}), tmp_path)
    assert says(str(refused.value), "stop.epsilon ... trunk learns")


def test_a_delta_above_one_in_the_samples_is_a_warning_with_their_number():
    from simsplit.scenario.refusals import list_data_warnings

    given = private({**FORWARD, "report_delta": 0.1}, dp={"delta": 0.05})
    first, second = list_data_warnings(given, given.prepare_data())
    assert says(first, "train.dp.delta ... 0.05 ... 30 samples ... 1e-3")
    assert says(second, "method.0.report_delta ... 0.1")
    few = private(dp={"delta": 0.03})
    assert list_data_warnings(few, few.prepare_data()) == []


BUDGET = {"schedule": {"rounds": 4}, "stop": {"epsilon": 4.0}, "train": {"batch_size": 16}}


def test_a_run_ends_before_the_round_that_would_pass_its_budget(tmp_path):
    given = private(**BUDGET)
    done = Run.load(run_to_end(given, tmp_path / "run").path)
    rows = done.clients[done.clients["round"] > 0]
    assert done.summary["rounds_done"] < 4
    assert rows["epsilon"].max() <= 4.0 < rows["epsilon_next"].max()
    assert says(done.summary["reason"], f"epsilon ... round {done.summary['rounds_done'] + 1}")
    for row in rows.itertuples():
        account = find_account(given, 30)
        assert row.epsilon == account.compute(row.times_sent)
        assert row.epsilon_next == account.compute(row.times_sent + 1)
    entry = done.summary["privacy"][0]
    assert entry["epsilon"] == rows["epsilon"].max()
    assert [each["leg"] for each in done.summary["uncovered"]] == ["smashed", "features_grad"]


def test_a_client_that_dropped_out_may_take_a_whole_round_next(tmp_path):
    """Its last round had fewer batches than the next one may have, which must be within too."""
    given = private(
        seed=2,
        clients={"count": 1},
        data={"train_samples": 40, "test_samples": 10},
        train={"batch_size": 8},
        dp={"multiplier": 4.0},
        schedule={"rounds": 6, "local_steps": 5},
        cohort={"dropout": 0.5},
        stop={"epsilon": 1.9},
    )
    done = Run.load(run_to_end(given, tmp_path / "run").path)
    assert done.clients["dropped"].any()
    assert done.summary["status"] == "finished"
    assert done.clients["epsilon"].max() <= 1.9 < done.clients["epsilon_next"].max()


def test_a_client_that_was_left_out_ends_no_run_by_its_budget(tmp_path):
    frozen = {**WHOLE, "learns": ["trunk"]}
    watched = [{"kind": "krum", "response": "skip"}]
    given = scenario(model=frozen, method=[FORWARD], detectors=watched, stop={"epsilon": 50.0})
    live = Experiment(given, tmp_path).live
    live.progress.epsilon_next = {"0": 60.0, "1": 40.0}
    assert live.find_spent(1) == {0: 60.0}
    live.detection.guard.barred.add(0)
    assert live.find_spent(1) == {}


@pytest.mark.parametrize("every", [0, 4])
def test_the_last_round_by_a_budget_is_evaluated_whatever_rounds_are(every, tmp_path):
    done = Run.load(run_to_end(private(**BUDGET, evaluate={"every": every}), tmp_path / "run").path)
    last = done.summary["rounds_done"]
    assert last < 4
    assert done.summary["last"]["round"] == last


def test_a_client_goes_no_further_than_its_budget_whoever_asks(tmp_path):
    made = Experiment(private(**BUDGET), tmp_path / "run")
    training = made.parts.pool.clients[0].training
    most = training.account.most
    assert training.account.compute(most) <= 4.0 < training.account.compute(most + 1)
    training.taken["private"] = most * training.steps_per_epoch("private") - 1
    made.live.enter(made.live.program.choose_lineup(1))
    assert training.begin(1), "the last batch within the budget"
    with pytest.raises(BudgetSpentError, match="client 0 goes no further"):
        training.begin(1)


def test_a_plan_says_what_a_run_by_train_dp_then_spends(tmp_path):
    for sampling in ("passes", "poisson"):
        given = private(dp={"sampling": sampling}, train={"batch_size": 16})
        forecast = plan(given, timing=False, epsilon=3.0)
        done = Run.load(run_to_end(given, tmp_path / sampling).path)
        assert [*forecast.facts.privacy] == done.summary["privacy"]
        (line,) = forecast.facts.noise
        assert line["field"] == "train.dp.multiplier"
        enough = private(
            dp={"sampling": sampling, "multiplier": line["value"]}, train={"batch_size": 16}
        )
        (entry,) = plan(enough, timing=False).facts.privacy
        assert 2.9 < entry["epsilon"] <= 3.0 * (1 + 1e-6)


def test_a_plan_counts_a_mini_batch_that_crosses_in_parts_once_as_its_run_does(tmp_path):
    given = private(train={"batch_size": 16, "accumulate": 4}, stop={"epsilon": 500})
    done = Run.load(run_to_end(given, tmp_path / "run").path)
    assert [*plan(given, timing=False).facts.privacy] == done.summary["privacy"]


@pytest.mark.parametrize("drop_last", [False, True])
def test_parts_of_a_mini_batch_that_no_client_counts_are_one_sending_too(drop_last, tmp_path):
    frozen = {**WHOLE, "learns": ["trunk"]}
    train = {"batch_size": 16, "accumulate": 4, "drop_last": drop_last}
    given = scenario(model=frozen, method=[FORWARD], train=train)
    (entry,) = Run.load(run_to_end(given, tmp_path / "run").path).summary["privacy"]
    assert entry["times_sent"] == 2, "once in each of two epochs"
    assert [*plan(given, timing=False).facts.privacy] == [entry]
    lossy = scenario(model=frozen, method=[FORWARD], train=train, cohort={"dropout": 0.2})
    assert count_packets(lossy, {0: 2}, [30]) == {0: 2}


def test_a_client_that_cannot_count_its_budget_does_not_take_part(monkeypatch):
    monkeypatch.setattr(spending, "find_spec", lambda name: None)
    assert find_account(private(), 100) is None, "without a budget it takes part"
    with pytest.raises(ScenarioError) as refused:
        find_account(private(**BUDGET), 100)
    assert says(str(refused.value), "stop.epsilon ... dp-accounting")


def test_a_recurrent_layer_has_no_known_gradient_of_a_sample():
    assert [name for name, _ in find_unfit(nn.Sequential(nn.GRU(2, 3), nn.Linear(3, 2)))] == ["0"]


def test_a_plan_counts_the_memory_of_norms_that_learn_by_train_dp(tmp_path):
    model = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
    given = text_scenario(tmp_path, model=model, train={"dp": DP})
    assert (plan(given, timing=False).memory["activations"].dropna() > 0).all()


def test_a_plan_scales_the_noise_at_the_cut_to_a_budget():
    frozen = {**WHOLE, "learns": ["trunk"]}
    given = scenario(model=frozen, method=[FORWARD, BACK])
    untrained = scenario(schedule={"rounds": 0}).schedule
    first, second = plan(given, timing=False, epsilon=3.0).facts.noise
    assert [first["field"], second["field"]] == ["method.0.epsilon", "method.1.multiplier"]
    changed = [{**FORWARD, "epsilon": first["value"]}, {**BACK, "multiplier": second["value"]}]
    *_, both = plan(scenario(model=frozen, method=changed), timing=False).facts.privacy
    assert both["epsilon"] == pytest.approx(3.0, rel=1e-3)
    with pytest.raises(ScenarioError, match=r"train\.dp: no"):
        plan(scenario(model=WHOLE), timing=False, epsilon=3.0)
    with pytest.raises(ScenarioError) as refused:
        plan(given.model_copy(update={"schedule": untrained}), timing=False, epsilon=3.0)
    assert says(str(refused.value), "schedule.rounds ... no sample is sent ... 1 round")


def test_each_guarantee_counts_the_noise_that_the_client_adds(tmp_path):
    """The noise is found for the whole sample, so a part of it has spent less."""
    budget = {"multiplier": None, "epsilon": 6.0}
    slight = [{**FORWARD, "epsilon": 0.5}, {**BACK, "multiplier": 20.0}]
    of_input, of_label, both = list_guarantees(private(*slight, model=WHOLE, dp=budget))
    spent = [each.open_account(200) for each in (of_input, of_label, both)]
    noise = make_noise(private(*slight, model=WHOLE, dp=budget), 200)
    assert {each.learning for each in spent} == {noise.multiplier / 2}
    assert max(spent[0].compute(2), spent[1].compute(2)) < spent[2].compute(2) <= 6.0


def test_a_label_beside_tokens_counts_the_noise_that_the_client_adds(tmp_path):
    """Noise on tokens has no part in weights that labels alone reach, though it is listed first."""
    given = text_scenario(
        tmp_path,
        model={"head": 0, "learns": ["trunk", "tail"]},
        method=[{**FORWARD, "per": "token"}, {**BACK, "multiplier": 8.0}],
        train={"dp": {"epsilon": 4.0}},
    )
    of_token, of_label = (each for each in list_guarantees(given) if not each.lacks)
    assert of_token.learning is None
    spent = of_label.open_account(30)
    assert spent.learning == make_noise(given, 30).multiplier / 2
    assert 3.9 < spent.compute(2) <= 4.0 * (1 + 1e-6)


def test_a_deployed_run_that_went_back_has_released_weights_under_the_same_noise():
    of_input, of_label, both = list_guarantees(private(FORWARD, BACK, model=WHOLE))
    assert all(says(each.lacks, "checkpoint") for each in void_repeated([of_input, of_label, both]))
    (weights,) = void_repeated(list_guarantees(private()))
    assert says(weights.lacks, "checkpoint")


def test_drawn_batches_that_are_seen_take_no_budget():
    budget = {"multiplier": None, "epsilon": 400.0, "sampling": "poisson"}
    with pytest.raises(ScenarioError) as refused:
        make_noise(private(FORWARD, BACK, model=WHOLE, dp=budget), 40)
    assert says(str(refused.value), "train.dp.sampling ... passes, or multiplier")


PARTIES: dict[str, Any] = {
    "topology": "vertical",
    "data": {"partition": {"kind": "parts"}},
    "clients": {"count": 2, "heads": "per_client"},
    "vertical": {"party": 1},
}


def of_parties(*methods: dict[str, Any], **changes: Any) -> Scenario:
    model = {"kind": "mlp", "widths": [8, 8, 8], "learns": ["trunk"]}
    return scenario(**{"method": list(methods), "model": model, **PARTIES, **changes})


def test_the_party_with_the_labels_alone_spends_what_its_noise_on_them_costs():
    """Other parties send nothing of labels, so no method of theirs voids the guarantee."""
    other = {"kind": "mid", "by": "party 0"}
    (own,) = list_guarantees(of_parties(other, {**BACK, "by": "party 1"}))
    assert (own.lacks, own.client) == ("", 1)
    assert [spent.client for spent in account(own, {0: 2, 1: 2}, [20, 20])] == [1]
    (alone,) = list_guarantees(of_parties(BACK))
    assert alone == replace(own, method=alone.method)
    (lacking,) = list_guarantees(of_parties(BACK, {**other, "by": "party 1"}))
    assert says(lacking.lacks, "mid ... encode")
    drawn = {"kind": "randomised_response", "by": "party 1"}
    (labels,) = list_guarantees(of_parties(other, drawn))
    assert (labels.lacks, labels.client) == ("", 1)


def test_a_party_without_what_is_protected_has_no_account_and_no_budget(tmp_path):
    given = of_parties({**BACK, "by": "party 1"}, stop={"epsilon": 50.0})
    clients = Experiment(given, tmp_path).parts.pool.clients
    assert [clients[each].training.account is None for each in (0, 1)] == [True, False]
    assert clients[0].training.report_spending() == {}


def test_noise_of_one_partys_columns_covers_no_sample():
    (alone,) = list_guarantees(of_parties({**FORWARD, "by": "party 0"}))
    assert says(alone.lacks, "one party's columns")
    learning = {"kind": "mlp", "widths": [8, 8, 8], "learns": ["head", "tail"]}
    (weights,) = list_guarantees(of_parties(model=learning, train={"dp": DP}))
    assert says(weights.lacks, "one party's columns")


def test_a_party_that_was_away_has_spent_no_less_than_its_most_sent_sample(tmp_path):
    given = of_parties(
        {**BACK, "by": "party 1"},
        **{**PARTIES, "data": {**PARTIES["data"], "train_samples": 32}},
        schedule={"kind": "parallel", "rounds": 8, "local_steps": 1},
        cohort={"availability": {"period": 2, "window": 1, "phases": "same"}},
    )
    made = run_to_end(given, tmp_path / "run")
    feed = made.parts.pool.clients[1].training.feeds["private"]
    sent = np.bincount(np.concatenate([feed.indices(number) for number in (0, 2, 4, 6)]))
    (entry,) = Run.load(made.path).summary["privacy"]
    assert entry["times_sent"] == 4 > sent.max() > 2, "epochs of two batches, one of them sent"
    assert [*plan(given, timing=False).facts.privacy] == [entry]


@pytest.mark.parametrize(
    "method",
    [
        {"kind": "dp_sgd"},
        {"kind": "dp_forward", "epsilon": 2.0},
        {"kind": "noise", "unit": "batch_std"},
    ],
)
def test_a_method_that_clips_by_the_whole_batch_has_no_epsilon(method):
    """One sample then moves the gradients of all others by more than the clipping norm."""
    with pytest.raises(ScenarioError) as caught:
        private(method)
    assert says(str(caught.value), "whole batch ... unit: value")
