"""Clients at their own pace: stale gradients, and who comes first, as written out by hand."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pace import quick
from plain_loops import (
    assert_equal,
    batch,
    begin,
    figures,
    nets_on_one_trunk,
    rounds_of,
    train,
    watch,
    weights_of,
)

from simsplit.experiment import Experiment
from simsplit.legs import ClientId, Leg
from simsplit.results import Run

MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
ADAM = {"kind": "adam", "lr": 2e-3}
LIFT = {"kind": "lightsplit", "lift": "learned", "hidden": 32}
EQUAL = (20, 20)
OWN = {"heads": "per_client"}
WIFI = {"device": "laptop", "link": "wifi"}


def asynchronous(max_ahead: int | None, **more: Any) -> dict[str, Any]:
    """Return the fields that every scenario here has."""
    schedule = {"kind": "asynchronous", "max_ahead": max_ahead, **more}
    return {"schedule": schedule, "clients": OWN, "network": WIFI}


def both(optimizer: dict[str, Any]) -> dict[str, Any]:
    return {"train": {"client": optimizer, "server": optimizer}}


@pytest.mark.parametrize(
    ("optimizer", "more", "max_ahead"),
    [
        (MOMENTUM, {}, None),
        (ADAM, {"method": [LIFT]}, 0),
        pytest.param(ADAM, {"topology": "vanilla"}, None, marks=pytest.mark.slow),
    ],
)
def test_one_client_alone_trains_as_in_turn(
    optimizer: dict[str, Any], more: dict[str, Any], max_ahead: int | None, tmp_path: Path
) -> None:
    common = both(optimizer) | more | {"evaluate": {"every": 1}}
    run = train(tmp_path / "run", [21], **asynchronous(max_ahead), **common)
    in_turn = {"schedule": {"kind": "round_robin"}, "clients": OWN}
    plain = train(tmp_path / "plain", [21], **in_turn, **common)
    assert_equal(weights_of(run), weights_of(plain))
    assert rounds_of(run, figures(run.scenario)) == rounds_of(plain, figures(plain.scenario))
    assert rounds_of(run, ["staleness"]) == [[0], [0]]


@pytest.mark.parametrize("optimizer", quick([MOMENTUM, ADAM], ADAM))
def test_a_stale_gradient_is_taken_on_the_old_weights_and_applied_to_the_new(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    """Two equal clients in lockstep: both forward passes come before the first backward pass."""
    run = begin(tmp_path / "run", EQUAL, **asynchronous(0), **both(optimizer))
    nets = nets_on_one_trunk(run)
    trunk, server = nets[0].trunk, nets[0].server
    losses: list[float] = []
    for number in range(2 * 3):
        seen = copy.deepcopy(trunk)  # by both, before either moves it
        for client, each in enumerate(nets):
            given = batch(run, client, number)
            seen.zero_grad()
            loss = each.loss(seen(each.head(given.inputs)), given)
            loss.backward()
            losses.append(loss.item() * len(given.labels))
            for live, old in zip(trunk.parameters(), seen.parameters(), strict=True):
                live.grad = None if old.grad is None else old.grad.clone()
            each.learn(each.client, server)
    order = [(packet.leg, packet.client) for packet in watch(run)[:16]]
    for client, each in enumerate(nets):
        assert_equal(weights_of(run, client), each.weights())
    means = [sum(losses[:6]) / 40, sum(losses[6:]) / 40]
    assert [row[0] for row in rounds_of(run, ["train_loss"])] == pytest.approx(means, rel=1e-6)
    assert rounds_of(run, ["staleness"]) == [[0.5], [0.5]]
    assert Run.load(run.path).clients["staleness"].tolist() == [0, 1, 0, 1]
    for lap in (order[:8], order[8:]):
        assert lap.index((Leg.FEATURES, 1)) < lap.index((Leg.SMASHED_GRAD, 0))
        for leg in (Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD):
            assert [client for each, client in lap if each is leg] == [0, 1]


def test_under_vanilla_nothing_is_ever_stale(tmp_path: Path) -> None:
    """The server does forward and backward pass in one go."""
    run = train(tmp_path / "run", (20, 20, 20), **asynchronous(None), topology="vanilla")
    assert rounds_of(run, ["staleness"]) == [[0], [0]]


def list_served(run: Experiment) -> list[ClientId]:
    """List the clients whose steps began, in order."""
    return [packet.client for packet in watch(run) if packet.leg is Leg.SMASHED]


def unequal(path: Path, max_ahead: int | None, **more: Any) -> tuple[Experiment, ClientId]:
    """Make two clients, one far slower, and say which one that is."""
    fields = asynchronous(max_ahead, rounds=1, **more)
    network = {"device": {"edge": 1, "gpu": 1}, "link": "datacentre"}
    small = {"network": network, "seed": 5, "train": {"batch_size": 4}}
    run = begin(path, (32, 32), **fields | small)
    rates = [rates.flops_per_s for rates in run.parts.course.clock.rates]
    assert max(rates) / min(rates) == 1000
    return run, rates.index(min(rates))


def test_the_faster_client_does_not_wait_unless_it_is_bounded(tmp_path: Path) -> None:
    run, slow = unequal(tmp_path / "free", None)
    order = list_served(run)
    assert Counter(order) == {0: 8, 1: 8}
    second_of_slow = [place for place, client in enumerate(order) if client == slow][1]
    assert order[:second_of_slow].count(1 - slow) == 8
    run, slow = unequal(tmp_path / "lockstep", 0)
    order = list_served(run)
    assert [sorted(order[lap : lap + 2]) for lap in range(0, 16, 2)] == [[0, 1]] * 8


@pytest.mark.parametrize("max_ahead", quick([1, 3], 1))
def test_nobody_is_further_ahead_than_allowed(max_ahead: int, tmp_path: Path) -> None:
    """A step may begin while its client has taken so many more than the slowest."""
    run, _ = unequal(tmp_path / "run", max_ahead)
    leads, taken = [], {0: 0, 1: 0}
    for packet in watch(run):
        if packet.leg is Leg.SMASHED:
            leads.append(taken[packet.client] - taken[1 - packet.client])
        if packet.leg is Leg.SMASHED_GRAD:
            taken[packet.client] += 1
    assert max(leads) == max_ahead
    assert taken == {0: 8, 1: 8}


@pytest.mark.parametrize("max_ahead", quick([2, None], 2))
def test_staleness_counts_the_steps_of_others_in_between(
    max_ahead: int | None, tmp_path: Path
) -> None:
    """From a client's forward pass through the trunk to its backward pass."""
    run, _ = unequal(tmp_path / "run", max_ahead)
    steps, before = 0, {}
    stale: dict[ClientId, list[int]] = {0: [], 1: []}
    for packet in watch(run):
        if packet.leg is Leg.FEATURES:
            before[packet.client] = steps
        if packet.leg is Leg.SMASHED_GRAD:
            stale[packet.client].append(steps - before[packet.client])
            steps += 1
    means = [sum(each) / len(each) for each in stale.values()]
    assert max(means) > 0
    assert Run.load(run.path).clients["staleness"].tolist() == pytest.approx(means)
    assert rounds_of(run, ["staleness"]) == [[pytest.approx(sum(means) / 2)]]


def test_a_client_begins_once_it_has_the_average(tmp_path: Path) -> None:
    """The one on a slow link gets its weights long after the other has taken its only step."""
    fields = asynchronous(None, rounds=1, local_steps=1)
    slow = {
        "clients": {"heads": "shared"},
        "aggregation": "splitfed_v2",
        "network": {"device": "gpu", "link": {"lte": 1, "datacentre": 1}},
        "model": {"kind": "mlp", "widths": [300, 8, 8]},
        "seed": 5,
    }
    run = begin(tmp_path / "run", (20, 20), **{**fields, **slow})
    order = [(packet.leg, packet.client) for packet in watch(run)]
    rates = [rates.down_bytes_per_s for rates in run.parts.course.clock.rates]
    assert max(rates) > 100 * min(rates)
    late = rates.index(min(rates))
    assert order.index((Leg.SMASHED_GRAD, 1 - late)) < order.index((Leg.SMASHED, late))
    assert rounds_of(run, ["staleness"]) == [[0]]
