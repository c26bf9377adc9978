"""Clients' tests for forged gradients tell a server that hijacks training from an honest one."""

import pytest
from builders import run_to_end, scenario
from torch import nn

from simsplit import Run
from simsplit.attacks import fsha

LEARNERS = {"client": {"kind": "adam"}, "server": {"kind": "adam"}}
GUARD = {
    "data": {"train_samples": 400, "auxiliary": 0.4, "normalise": "unit"},
    "schedule": {"rounds": 5},
    "train": LEARNERS,
    "method": [{"kind": "splitguard"}],
}
# Its score of an honest server falls as the task is learned, so there are two rounds.
SCRUTINIZER = {
    "data": {"train_samples": 1200, "auxiliary": 0.3, "normalise": "unit"},
    "schedule": {"rounds": 2},
    "train": {"batch_size": 32, **LEARNERS},
    "method": [{"kind": "gradients_scrutinizer", "after": 20}],
}


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "above", "below"), [(GUARD, 0.9, 0.6), (SCRUTINIZER, 0.5, 0.5)])
def test_an_honest_server_is_distinguished_from_a_hijacker(
    tmp_path, monkeypatch, fields, above, below
):
    def small(cut, image, **_):
        size = cut[0] * cut[1] * cut[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    monkeypatch.setattr(fsha, "critic", small)
    common = {
        "topology": "vanilla",
        "model": {"kind": "mnistnet"},
        "clients": {"count": 1},
        **fields,
    }
    hijack = [{"kind": "fsha", "lr_critic": 0.001, "lr_pilot": 0.001}]
    last = {}
    for name, attacks in (("honest", []), ("hijacked", hijack)):
        made = run_to_end(scenario(**common, attacks=attacks), tmp_path / name)
        last[name] = Run.load(made.path).clients[fields["method"][0]["kind"]].iloc[-1]
    assert last["honest"] > above
    assert last["hijacked"] < below
