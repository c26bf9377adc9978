"""Coalitions: a run without some clients, equal to the run with all, and to a plain smaller one."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from builders import run_to_end, scenario
from gists import gist

from simsplit import Run, RunError, value_clients
from simsplit.experiment import Experiment
from simsplit.valuing.coalitions import Coalitions, simplify

WAYS = {
    "handed on": {},
    "averaged": {"aggregation": "splitfed_v2"},
    "own heads": {"clients": {"heads": "per_client"}},
    "copies": {"aggregation": "splitfed_v1"},
}


@pytest.mark.parametrize("way", WAYS)
def test_everybody_trained_anew_equals_the_run(tmp_path, way):
    given = scenario(**WAYS[way])
    run_to_end(given, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    coalitions = Coalitions(run, given, given.prepare_data(), "test_accuracy", 0)
    everybody = frozenset(range(3))
    resumed = coalitions.value(everybody, 3)
    assert resumed.mean() == pytest.approx(run.summary["last"]["test_accuracy"])
    anew = coalitions._train(tmp_path / "anew", everybody, 3)
    assert np.array_equal(anew, resumed)
    other = coalitions.value(frozenset({0, 2}), 3)
    assert len(other) == len(resumed) == 40
    shutil.rmtree(run.path / "checkpoints")
    assert np.array_equal(coalitions.value(everybody, 3), resumed)


def test_clients_of_a_stacked_run_have_values(tmp_path):
    """How many train as one tensor is of the run, and its checkpoint goes on with it alone."""
    given = scenario(
        aggregation="fused",
        schedule={"kind": "parallel", "rounds": 2},
        engine={"kind": "inline", "stack": 2},
    )
    run_to_end(given, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    coalitions = Coalitions(run, given, given.prepare_data(), "test_accuracy", 1)
    everybody = coalitions.value(frozenset(range(3)), 3)
    assert everybody.mean() == pytest.approx(run.summary["last"]["test_accuracy"])
    assert len(coalitions.value(frozenset({0, 2}), 3)) == len(everybody)


def test_a_coalition_draws_what_its_clients_drew_alone(tmp_path):
    """Two of three clients come to what the same two come to in a run of their own."""
    whole = scenario(data={"normalise": "unit"})
    data = whole.prepare_data()
    run_to_end(whole, tmp_path / "run")
    coalitions = Coalitions(Run.load(tmp_path / "run"), whole, data, "test_accuracy", 0)
    coalitions._train(tmp_path / "two", frozenset({0, 1}), 3)
    few = scenario(data={"normalise": "unit"}, clients={"count": 2})
    Experiment(few, tmp_path / "own", data=replace(data, parts=data.parts[:2])).run(resume=False)
    ours, own = Run.load(tmp_path / "two"), Run.load(tmp_path / "own")
    assert ours.rounds.iloc[-1]["test_loss"] == own.rounds.iloc[-1]["test_loss"]
    assert ours.rounds["train_loss"].tolist() == own.rounds["train_loss"].tolist()
    assert ours.clients.query("client == 2")["steps"].sum() == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_goes_on_as_the_run_until_a_client_is_missed(tmp_path, way):
    given = scenario(**WAYS[way], train={"batch_size": 30})
    run_to_end(given, tmp_path / "run")
    run, data = Run.load(tmp_path / "run"), given.prepare_data()
    coalitions = Coalitions(run, given, data, "test_accuracy", 1)
    coalitions._resume(tmp_path / "all", frozenset(range(3)), 1)
    resumed = Run.load(tmp_path / "all")
    assert resumed.rounds.to_csv() == run.rounds.to_csv()
    # the last client of round 1 holds what is handed on, and is left out of the next one
    coalitions._resume(tmp_path / "two", frozenset({0, 1}), 1)
    two = Run.load(tmp_path / "two").clients
    before, after = (two[two["round"] == number] for number in (1, 2))
    assert before.to_csv() == run.clients[run.clients["round"] == 1].to_csv()
    assert after["steps"].tolist() == [1, 1, 0]
    # the first step after the checkpoint is the run's own: from the same weights
    first = run.clients.query("round == 2 and client == 0")["train_loss"].item()
    assert after["train_loss"].iloc[0] == first


def test_who_is_malicious_stays_with_another_seed():
    poison = [{"kind": "label_flip"}]
    given = scenario(clients={"count": 5, "malicious": {"fraction": 0.4, "poison": poison}})
    simple = simplify(given, 11, evaluates=False)
    assert simple.malicious == given.malicious
    assert simple.seed == 11
    assert simple.evaluate.every == 0


def test_what_changes_weights_stays_in_a_coalition():
    detectors = [{"kind": "krum"}, {"kind": "cosine_mad", "response": "skip"}]
    given = scenario(detectors=detectors, clients={"quorum": 3})
    simple = simplify(given, 3, evaluates=False)
    assert [each.kind_name for each in simple.detectors] == ["cosine_mad"]
    assert simple.clients.quorum is None


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(tmp_path):
    given = scenario(checkpoint={"keep": 1})
    run_to_end(given, tmp_path / "run")
    run, data = Run.load(tmp_path / "run"), given.prepare_data()
    coalitions = Coalitions(run, given, data, "test_accuracy", 1)
    with pytest.raises(RunError, match=gist("after round 1 ... after: 2")):
        coalitions.value(frozenset({0, 1}), 3)
    assert not (run.path / "contributions" / "work").exists()


def test_nobody_goes_on_from_a_checkpoint_with_its_model(tmp_path):
    """Untrained, it would give every client a part of what all have learned before."""
    given = scenario()
    run_to_end(given, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    coalitions = Coalitions(run, given, given.prepare_data(), "test_loss", 1)
    before = run.rounds.set_index("round")["test_loss"][1]
    assert coalitions.value(frozenset(), 3) == pytest.approx(-before)


def test_a_client_that_plants_a_backdoor_has_a_value_below_zero(tmp_path):
    bad = {"ids": [0], "poison": [{"kind": "badnets", "rate": 0.8, "target": 0}]}
    given = scenario(clients={"malicious": bad, "heads": "per_client"}, schedule={"rounds": 1})
    run_to_end(given, tmp_path / "run")
    run, data = Run.load(tmp_path / "run"), given.prepare_data()
    coalitions = Coalitions(run, given, data, "attack_success", 0)
    (score,) = coalitions.value(frozenset(range(3)), 3)
    assert score == pytest.approx(-run.summary["last"]["attack_success"])
    assert score < 0
    # Without an honest client its success has no mean, and accuracy has one.
    alone = Coalitions(run, given, data, "test_accuracy", 0).value(frozenset({0}), 3)
    assert 0 <= alone.mean() <= 1


def test_a_loss_is_a_score_with_its_sign_changed(tmp_path):
    given = scenario()
    run_to_end(given, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    for column in ("test_loss", "train_loss"):
        coalitions = Coalitions(run, given, given.prepare_data(), column, 0)
        (score,) = coalitions.value(frozenset(range(3)), 3)
        assert score == pytest.approx(-run.rounds[column].iloc[-1])


def test_a_run_that_was_made_longer_has_other_values(tmp_path):
    short = scenario(schedule={"rounds": 1})
    run_to_end(short, tmp_path / "run")
    first = Coalitions(Run.load(tmp_path / "run"), short, short.prepare_data(), "test_loss", 0)
    before = first.value(frozenset({0, 1}), 3)
    value_clients(tmp_path / "run")
    assert len(Run.load(tmp_path / "run").contributions) == 3
    longer = scenario(schedule={"rounds": 3})
    Experiment(longer, tmp_path / "run").run(resume=True)
    second = Coalitions(Run.load(tmp_path / "run"), longer, longer.prepare_data(), "test_loss", 0)
    assert not second.is_known(frozenset({0, 1}), 3)
    assert Run.load(tmp_path / "run").contributions.empty, "they were of the shorter run"
    assert second.value(frozenset({0, 1}), 3) != before
