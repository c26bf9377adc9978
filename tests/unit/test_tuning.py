"""An attacker tunes on clients that it simulates: never on the truth, and once."""

import json
from dataclasses import replace
from typing import Literal

import pytest
import torch
from builders import TINY

from simsplit import Run, run
from simsplit.attacks import Attack, AttackConfig, Threat
from simsplit.attacks.attack import payloads
from simsplit.data.simulated import simulate_clients
from simsplit.errors import ScenarioError
from simsplit.evidence.digests import digest_of
from simsplit.plugins import gather_plugins
from simsplit.report.numbers import measure
from simsplit.running.tuning import tune_attacks
from simsplit.scenario import load_scenario, parse
from simsplit.scenario.files import merge
from simsplit.whole_run import _run_simulated


class FlatConfig(AttackConfig):
    """Grey images."""

    kind: Literal["flat"] = "flat"
    grey: float = 0.5
    threat = Threat(knows=())

    def build(self, known):
        return Flat(known, self.grey)


class Flat(Attack):
    def __init__(self, known, grey):
        super().__init__(known)
        self.grey = grey

    def work(self, targets):
        count = sum(len(packet.tensors[0]) for packet in payloads(targets))
        self.made = torch.full((count, *self.known.image), self.grey)
        yield 1, 1

    @property
    def recovered(self):
        return self.made


PLUGIN = {"ATTACKS": {"flat": FlatConfig}}
TUNED = {
    "data": {"train_samples": 120, "auxiliary": 0.5, "normalise": "unit"},
    "schedule": {"rounds": 1},
    "attacks": [{"kind": "flat", "tune": {"grey": [0.05, 0.95]}}],
    "targets": {"count": 8},
}


def tuned(**changes):
    return parse(merge(TINY, {**TUNED, **changes}), gather_plugins(PLUGIN))


@pytest.fixture
def apart():
    """A scenario whose private images are all but white, and whose auxiliary ones are black."""
    given = tuned()
    data = given.prepare_data()
    white = replace(data.train, inputs=torch.full_like(data.train.inputs, 242))
    black = replace(data.auxiliary, inputs=torch.full_like(data.auxiliary.inputs, 13))
    black_support = {"auxiliary": black, "support": black}
    return given, replace(data, train=white, test=white.take(range(10)), **black_support)


def test_what_is_best_on_the_truth_is_not_chosen_if_it_is_worse_on_auxiliary_data(apart, tmp_path):
    given, data = apart
    made = tune_attacks(given, data, tmp_path, train=_run_simulated, tell=lambda message: None)
    assert made.attacks[0].grey == 0.05  # 0.95 is what every private image looks like
    (kept,) = json.loads((tmp_path / "tuned.json").read_text())["attacks"]
    assert kept["chosen"] == {"grey": 0.05}
    assert [each["grey"] for each in kept["tried"]] == [0.05, 0.95]
    assert kept["tried"][0]["score"] > kept["tried"][1]["score"]
    assert kept["figure"] == "flat_ssim"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tuned.json"]


def test_simulated_clients_have_auxiliary_samples_alone(apart):
    given, data = apart
    made = simulate_clients(data, given.data, 3, 1)
    every = [made.train, made.auxiliary, made.test]
    assert sum(map(len, every)) == len(data.auxiliary)
    assert all(bool((each.inputs == 13).all()) for each in every)
    assert len(made.parts) == 3
    assert made.validation is None


def test_a_run_has_the_chosen_values_and_resumes_with_them(tmp_path, monkeypatch):
    given = tuned()
    warnings = []
    made = run(given, tmp_path / "a", observers=[Warned(warnings)])
    (kept,) = made.tuned["attacks"]
    assert (
        load_scenario(made.path / "scenario.yaml", plugins=given.plugins).attacks[0].grey
        == (kept["chosen"]["grey"])
    )
    figures = measure([made], "last")
    assert figures["tuned_flat_grey"] == [kept["chosen"]["grey"]]
    assert figures["tuning_seconds"][0] > 0
    assert any("2 combinations" in each for each in warnings)
    # the choice is kept: another one than the attacker's stays, and nothing is tried again
    facts = json.loads((made.path / "tuned.json").read_text())
    facts["attacks"][0]["chosen"]["grey"] = 0.7
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tuned.json").write_text(json.dumps(facts))
    again = run(given, tmp_path / "b", resume=True)
    assert again.scenario["attacks"][0]["grey"] == 0.7
    # it counts for this scenario alone: another one, begun in the same folder, chooses anew
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "tuned.json").write_text(json.dumps(facts))
    other = tuned(attacks=[{"kind": "flat", "tune": {"grey": [0.05, 0.9]}}])
    assert run(other, tmp_path / "c").scenario["attacks"][0]["grey"] in (0.05, 0.9)


class Warned:
    dispensable = False

    def __init__(self, warnings):
        self.warnings = warnings

    def warn(self, message):
        self.warnings.append(message)

    def __getattr__(self, name):
        return lambda *values: None


def test_tuning_changes_nothing_else_of_a_run(tmp_path):
    """The simulated clients draw from streams of their own."""
    plain = tuned(attacks=[{"kind": "flat", "grey": 0.05}])
    value = run(tuned(), tmp_path / "tuned").tuned["attacks"][0]["chosen"]["grey"]
    plain = tuned(attacks=[{"kind": "flat", "grey": value}])
    run(plain, tmp_path / "plain")
    frames = [Run.load(tmp_path / name) for name in ("tuned", "plain")]
    assert frames[0].rounds.equals(frames[1].rounds)
    assert frames[0].recovered.equals(frames[1].recovered)


def test_a_choice_is_no_part_of_the_digest(tmp_path):
    given = tuned()
    made = run(given, tmp_path / "a")
    assert digest_of(load_scenario(made.path / "scenario.yaml", plugins=given.plugins)) == (
        digest_of(given)
    )
    other = tuned(attacks=[{"kind": "flat", "tune": {"grey": [0.05, 0.9]}}])
    assert digest_of(other) != digest_of(given)


@pytest.mark.slow
def test_attacks_that_follow_training_and_those_that_forge_are_tuned(tmp_path):
    attacks = [
        {"kind": "naive_sda", "tune": {"lr_decoder": [0.001, 0.1]}},
        {"kind": "fsha", "tune": {"lr_critic": [0.0001, 0.001]}},
    ]
    made = run(tuned(attacks=attacks), tmp_path / "a")
    assert [each["attack"] for each in made.tuned["attacks"]] == ["naive_sda", "fsha"]


@pytest.mark.parametrize(
    ("tune", "where"),
    [
        ({"gray": [1, 2]}, r"attacks.0.tune.gray.*grey"),
        ({"grey": [1]}, r"attacks.0.tune.grey.*two values"),
        ({"grey": [0.1, "dark"]}, r"attacks.0.tune.grey"),
        ({"name": ["a", "b"]}, r"attacks.0.tune.name"),
        ({"grey": list(range(65))}, r"attacks.0.tune.*64"),
    ],
)
def test_a_mistake_is_named_by_its_path(tune, where):
    with pytest.raises(ScenarioError, match=where):
        tuned(attacks=[{"kind": "flat", "tune": tune}])


def test_too_few_auxiliary_samples_are_refused(tmp_path):
    given = tuned(data={**TUNED["data"], "auxiliary": 0.05})
    with pytest.raises(ScenarioError, match=r"data.auxiliary.*too few"):
        run(given, tmp_path / "a")


def test_tuning_needs_auxiliary_data():
    with pytest.raises(ScenarioError, match="public data"):
        tuned(data={**TUNED["data"], "auxiliary": 0})
