"""rMLE: its steps against a plain loop, and a client's head in a run."""

from itertools import pairwise

import pytest
import torch
from builders import scenario
from contracts.leaks import build_setting, packet

from simsplit import run
from simsplit.attacks.rmle import Rmle, RmleConfig
from simsplit.legs import Leg


def test_it_is_the_published_loop_for_each_image():
    here = build_setting()
    config = RmleConfig(iterations=4, lr=0.1, tv=0.5, l2=0.2)
    attack = config.build(here.known)
    attack.receive_head({f"head/{n}": t for n, t in here.head.state_dict().items()})
    sent = here.head(here.truth[:3]).detach()
    for _ in attack.work([packet(sent, Leg.SMASHED, 0)]):
        pass
    for index in range(3):
        x = torch.zeros(1, 1, 8, 8, requires_grad=True)
        adam = torch.optim.Adam([x], lr=0.1, eps=1e-3, amsgrad=True)
        for _ in range(4):
            adam.zero_grad()
            down = (x[..., 1:, :] - x[..., :-1, :]).square().mean()
            across = (x[..., 1:] - x[..., :-1]).square().mean()
            feature = (here.head(x) - sent[index : index + 1]).square().mean()
            (feature + 0.5 * (down + across) + 0.2 * x.square().mean()).backward()
            adam.step()
        torch.testing.assert_close(attack.recovered[index], x.detach()[0], atol=1e-6, rtol=1e-5)


def test_what_it_has_so_far_is_there_whenever_it_yields():
    here = build_setting()
    attack = RmleConfig(iterations=4, lr=0.1).build(here.known)
    sent = here.head(here.truth[:3]).detach()
    seen = [attack.recovered for _ in attack.work([packet(sent, Leg.SMASHED, 0)])]
    assert [each.shape for each in seen] == [(3, 1, 8, 8)] * 4
    assert not any(torch.equal(one, other) for one, other in pairwise(seen))


@pytest.mark.parametrize("heads", ["shared", "per_client"])
def test_it_gets_the_head_of_its_target(tmp_path, heads, monkeypatch):
    """With the client's own weights much is read; with others of the same layers it is not."""
    given = scenario(
        data={"normalise": "unit"},
        clients={"heads": heads},
        attacks=[{"kind": "rmle", "iterations": 400, "lr": 0.05, "tv": 0.01}],
        targets={"count": 8, "client": 1, "statistics": "running"},
    )
    last = run(given, tmp_path / heads).attacks.set_index("attack")["mse"]
    assert last["rmle"] < 0.7 * last["mean_image"]
    monkeypatch.setattr(Rmle, "receive_head", lambda attack, weights: None)
    last = run(given, tmp_path / f"{heads}-without").attacks.set_index("attack")["mse"]
    assert last["rmle"] > last["mean_image"]
