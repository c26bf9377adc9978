"""SplitGuard: its score by hand, what a fake batch leaves behind, and who is told from whom."""

import math

import pytest
import torch
from builders import experiment, finished, scenario
from torch import nn

from simsplit import Run
from simsplit.attacks import fsha
from simsplit.data.batches import Batch
from simsplit.methods import Site, Step
from simsplit.methods.splitguard import WIDTH, Splitguard, SplitguardConfig, score
from simsplit.packets import Leg


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_score_by_hand():
    """Fake gradients at a right angle and twice as large; halves at 45 degrees, alike in size."""
    fake, regular = vector(0, 2), vector(1, 0)
    one, other = vector(1, 0), vector(0.5, 0.5) * 1.5
    minds, varies = 1.0, abs(1 - 1.5 * math.sqrt(0.5))
    x = (math.pi / 2 * minds - math.pi / 4 * varies) / (minds + varies)
    expected = (1 / (1 + math.exp(-5 * x))) ** 2
    assert score(fake, regular, one, other).item() == pytest.approx(expected, rel=1e-5)


def test_what_does_not_mind_fakes_scores_a_quarter_or_less():
    same = vector(1, 0)
    assert score(same, same, same, same).item() == pytest.approx(0.25)
    assert score(same, same, same, vector(0, 2)).item() < 0.01


def guard(**fields) -> Splitguard:
    site = Site("client", Leg.SMASHED, (4,), 0, torch.device("cpu"))
    return SplitguardConfig(**fields).build(site)


def test_fakes_come_as_often_as_asked_and_every_label_is_wrong():
    method = guard(after=3, probability=0.3)
    labels = torch.arange(10) % 5
    fakes = 0
    for number in range(1000):
        step = Step(0, 1, number, 0)
        batch = method.transform(Batch(torch.zeros(10, 4), labels, labels), step)
        wrong = batch.labels != labels
        assert wrong.all() or not wrong.any()
        assert batch.labels.max() < 5
        fakes += int(wrong.all())
        assert number >= 3 or not wrong.any()
    assert 250 < fakes < 350
    evaluated = Step(0, 1, 5, 0, training=False)
    batch = Batch(torch.zeros(1, 4), labels[:1], labels[:1])
    assert guard(after=0, probability=1).transform(batch, evaluated) is batch


@pytest.mark.parametrize("size", [10, WIDTH, 3 * WIDTH])
def test_gradients_are_kept_as_they_are_or_nearly(size):
    method = guard()
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
    kept = method._sketch(gradient)
    assert kept.norm().item() == pytest.approx(gradient.norm().item(), rel=0.1)
    if size <= WIDTH:
        assert torch.equal(kept[:size], gradient)


def test_nothing_is_learned_from_a_fake_batch(tmp_path):
    every = {"kind": "splitguard", "after": 0, "probability": 1.0}
    given = scenario(method=[every], schedule={"rounds": 1})
    made = experiment(given, tmp_path / "run")
    client = made.parts.pool.crew.clients[0].training.end
    before = {n: t.detach().clone() for n, t in client.head.named_parameters()}
    trunk = next(made.parts.server.end.trunk.parameters()).detach().clone()
    made.run(resume=False)
    assert all(torch.equal(before[n], t) for n, t in client.head.named_parameters())
    assert not torch.equal(trunk, next(made.parts.server.end.trunk.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_an_honest_server_is_told_from_a_hijacker(tmp_path, monkeypatch, topology):
    def small(cut):
        size = cut[0] * cut[1] * cut[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    monkeypatch.setattr(fsha, "critic", small)
    common = {
        "topology": topology,
        "data": {"train_samples": 400, "auxiliary": 0.4, "normalise": "unit"},
        "model": {"kind": "mnistnet"},
        "clients": {"count": 1},
        "schedule": {"rounds": 5},
        "train": {"client": {"kind": "adam"}, "server": {"kind": "adam"}},
        "method": [{"kind": "splitguard"}],
    }
    hijack = [{"kind": "fsha", "lr_critic": 0.001, "lr_pilot": 0.001}]
    last = {}
    for name, attacks in (("honest", []), ("hijacked", hijack)):
        made = finished(scenario(**common, attacks=attacks), tmp_path / name)
        last[name] = Run.load(made.path).clients["splitguard"].iloc[-1]
    assert last["honest"] > 0.9
    assert last["hijacked"] < 0.6
