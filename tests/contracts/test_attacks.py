"""What every attack owes: a planted leak is recovered, noise is not, it goes on where it was."""

import pytest
import torch
from contracts.leaks import build_setting, follow, recover_targets
from pace import quick
from torch import nn

from simsplit.attacks import ATTACKS, fora, fsha, sdar
from simsplit.attacks.threat import Role
from simsplit.methods.method import IMAGES

CASES = {
    "whitebox": [
        {"iterations": 300, "pairs": 320, "lr": 0.05, "start": "lift"},
        {"iterations": 300, "pairs": 320, "lr": 0.05, "start": "lift", "decoder": "fora"},
        {"iterations": 20, "pairs": 320, "lr": 0.01},
    ],
    "ridge": [{"pairs": 320}],
    "sdar": [{"lr_decoder": 0.1}],
    "naive_sda": [{"lr_decoder": 0.1}],
    "pcat": [{"lr_decoder": 0.05, "iterations": 150, "refinement": 5}],
    "fora": [
        {"lr_decoder": 0.05, "lr_substitute": 0.01, "penalty": 10.0},
        {"lr_decoder": 0.05, "lr_substitute": 0.01, "penalty": 10.0, "projected": True},
    ],
    "fora_reference": [{"lr": 0.05}],
    "fsha": [{"lr_pilot": 0.02, "lr_critic": 0.01, "penalty": 10.0}],
    "unsplit": [
        {"outer": 12, "inner": 20, "lr": 0.03, "l2": 0.0, "tv": 0.0, "clones": "batched"},
        {"outer": 4, "inner": 40, "lr": 0.03, "l2": 0.0, "tv": 0.0, "objective": "adaptive"},
    ],
    "rmle": [
        {"iterations": 300, "lr": 0.03, "tv": 0.0},
        {"iterations": 300, "lr": 0.03, "tv": 0.0, "objective": "adaptive"},
    ],
}
BRIEF = {"iterations": 3, "outer": 2, "inner": 2}
"""Where it is not asked how well an attack works."""
STEPS = {
    "sdar": 100,
    "naive_sda": 150,
    "pcat": 50,
    "fora": 150,
    "fora_reference": 150,
    "fsha": 600,
}
"""Of training, for attacks that follow it."""
EVERY = [(kind, fields) for kind, cases in CASES.items() for fields in cases]
every_attack = pytest.mark.parametrize(("kind", "fields"), EVERY)
trained_attack = pytest.mark.parametrize(
    "case",
    quick(EVERY, ("ridge", CASES["ridge"][0]), ("naive_sda", CASES["naive_sda"][0])),
    ids=str,
)


@pytest.fixture(autouse=True)
def small_judges(monkeypatch):
    shrink_judges(monkeypatch)


def shrink_judges(monkeypatch):
    """The published discriminators take millions of weights to judge what a few can."""

    def small(channels, cut):
        convolution = nn.Conv2d(channels, 8, 3, padding=1)
        return nn.Sequential(convolution, nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(512, 1))

    for module in (fora, fsha):
        monkeypatch.setattr(module, "critic", lambda cut, image, **how: small(cut[0], cut))
    for judge in ("feature_discriminator", "image_discriminator"):
        monkeypatch.setattr(sdar, judge, small)


def config_of(kind, fields):
    return ATTACKS[kind](**fields)


def brief(fields):
    return {name: BRIEF.get(name, value) for name, value in fields.items()}


def test_every_registered_attack_has_cases():
    inputs = {kind: each for kind, each in ATTACKS.items() if each.recovers == "inputs"}
    by_server = {kind: each for kind, each in inputs.items() if Role.SERVER in each.threat.roles}
    of_images = {kind for kind, each in by_server.items() if each.modalities >= IMAGES}
    assert CASES.keys() == of_images, "write cases for the new attack"


@trained_attack
@pytest.mark.parametrize("vanilla", quick([False, True], False))
def test_a_planted_leak_is_recovered(case, vanilla):
    kind, fields = case
    config, here = config_of(kind, fields), build_setting(vanilla=vanilla)
    steps = STEPS.get(kind, 0)
    result = recover_targets(config, here, steps=steps, noise=False)
    assert result.shape == here.truth.shape
    assert (result - here.truth).square().mean() < 0.4 * here.mean_error()


@trained_attack
def test_noise_gives_nothing_away(case):
    kind, fields = case
    config, here = config_of(kind, fields), build_setting()
    steps = STEPS.get(kind, 0)
    result = recover_targets(config, here, steps=steps, noise=True).clamp(0, 1)
    assert (result - here.truth).square().mean() > 0.9 * here.mean_error()


@every_attack
def test_the_same_again(kind, fields):
    config = config_of(kind, brief(fields))
    steps = 3 if config.threat.follows_training else 0
    first, again = (
        recover_targets(config, build_setting(), steps=steps, noise=False) for _ in range(2)
    )
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("kind", "fields"), [case for case in EVERY if ATTACKS[case[0]].threat.follows_training]
)
def test_an_attack_goes_on_where_it_was(kind, fields):
    config, here = config_of(kind, fields), build_setting()
    whole, first, second = (config.build(here.known) for _ in range(3))
    follow(whole, here, steps=4, noise=False)
    follow(first, here, steps=2, noise=False)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    second.load(kept)
    follow(second, here, steps=2, noise=False, first=2)
    after, expected = second.state(), whole.state()
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in expected)


@every_attack
def test_the_trunk_is_looked_at_and_not_touched(kind, fields):
    config, here = config_of(kind, brief(fields)), build_setting(vanilla=True)
    weights = {n: t.clone() for n, t in here.known.trunk.state_dict().items()}
    here.known.trunk.train()
    recover_targets(config, here, steps=3 if config.threat.follows_training else 0, noise=False)
    assert here.known.trunk.training
    assert all(p.grad is None for p in (*here.known.trunk.parameters(), *here.head.parameters()))
    assert all(torch.equal(weights[n], t) for n, t in here.known.trunk.state_dict().items())
