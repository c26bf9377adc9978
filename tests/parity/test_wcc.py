"""WCC is the client's alone: no packet changes its form, no server gradient knows of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import enter_round, experiment, run_to_end, scenario
from by_hand import Recorder

from simsplit.bench.overhead import feed_of
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.calls import SharedState

PROJECTION = {"kind": "lightsplit", "ratio": 8}


def one_step(path: Path, **changes: Any) -> tuple[Experiment, list[Packet]]:
    made = experiment(scenario(**changes), path)
    tap = Recorder()
    made.parts.exchange.announce(made.clients, counted=True)
    made.parts.wire.taps.append(tap)
    enter_round(made, 1)
    made.parts.exchange.step(0)
    return made, tap.packets


def test_one_step_differs_in_the_head_alone(tmp_path: Path) -> None:
    plain, sent = one_step(tmp_path / "plain", method=[PROJECTION])
    compact, sent_too = one_step(
        tmp_path / "wcc", method=[PROJECTION, {"kind": "wcc", "weight": 0.1}]
    )
    assert [packet.leg for packet in sent] == [packet.leg for packet in sent_too]
    assert [packet.nbytes for packet in sent] == [packet.nbytes for packet in sent_too]
    for one, other in zip(sent, sent_too, strict=True):
        assert all(map(torch.equal, one.tensors, other.tensors)), one.leg
    assert {packet.leg for packet in sent} == {
        Leg.SMASHED,
        Leg.FEATURES,
        Leg.FEATURES_GRAD,
        Leg.SMASHED_GRAD,
    }
    trunk, trunk_too = plain.parts.server.learner.state(), compact.parts.server.learner.state()
    assert all(torch.equal(trunk[name], trunk_too[name]) for name in trunk)
    client = plain.parts.pool.ask(0, SharedState())
    client_too = compact.parts.pool.ask(0, SharedState())
    changed = {name for name in client if not torch.equal(client[name], client_too[name])}
    assert any(name.startswith("head") for name in changed)
    assert not any(name.startswith("tail") for name in changed)


@pytest.mark.slow
def test_weight_zero_changes_nothing_at_all(tmp_path: Path) -> None:
    run_to_end(scenario(method=[PROJECTION]), tmp_path / "plain")
    zero = scenario(method=[PROJECTION, {"kind": "wcc", "weight": 0.0}])
    run_to_end(zero, tmp_path / "zero")
    for table in ("rounds", "clients", "wire"):
        one = (tmp_path / "plain" / f"{table}.csv").read_text()
        assert one == (tmp_path / "zero" / f"{table}.csv").read_text()


def test_the_head_gets_the_sum_of_the_two_gradients(tmp_path: Path) -> None:
    """Against autograd through the joint network with both losses at once."""
    changes: dict[str, Any] = {
        "method": [{"kind": "wcc", "weight": 0.05}],
        "clients": {"count": 1},
        "train": {"client": {"kind": "sgd", "lr": 1.0}, "server": {"kind": "sgd", "lr": 1.0}},
    }
    given = scenario(**changes)
    made, _ = one_step(tmp_path / "run", **changes)
    data = made.data
    model = given.model.build(data.info.shape, data.info.classes, given.seed)
    batch = feed_of(made.parts, 0).batch(0)
    z = model.head(batch.inputs)
    loss = torch.nn.functional.cross_entropy(model.tail(model.trunk(z)), batch.labels)
    for label in batch.labels.unique():
        of_class = z.flatten(1)[batch.labels == label]
        loss = loss + 0.05 * (of_class - of_class.mean(0)).square().sum(1).mean()
    loss.backward()
    state = made.parts.pool.ask(0, SharedState())
    for name, parameter in model.head.named_parameters():
        assert parameter.grad is not None
        stepped = parameter.detach() - parameter.grad
        torch.testing.assert_close(state[f"head.{name}"], stepped, atol=1e-5, rtol=1e-4)
