"""What clients do at once equals plain loops over the same batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Recorder
from pace import quick
from plain_loops import (
    Net,
    assert_close,
    assert_equal,
    average,
    batch,
    begin,
    epoch,
    figures,
    moments,
    net,
    nets_on_one_trunk,
    rounds_of,
    table,
    train,
    train_round,
    weights_of,
)

from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.parties.calls import OwnState, SharedState

MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
V2 = "splitfed_v2"
ADAM = {"kind": "adam", "lr": 2e-3}
OPTIMIZERS = {"momentum": MOMENTUM, "adam": ADAM}
ONE_LAP = {"kind": "parallel", "local_steps": 1}
ROUND_ROBIN = {"kind": "round_robin", "rounds": 3}
LIFT = {"kind": "lightsplit", "lift": "learned", "hidden": 32}


def both(optimizer: dict[str, Any]) -> dict[str, Any]:
    return {"client": optimizer, "server": optimizer}


def server_moments(run: Experiment) -> list[torch.Tensor]:
    """Return the trunk's moments: the server's, or those that the copies keep."""
    copies = list(run.parts.pool.workshop_state().values())
    return copies or list(run.parts.server.learner.moments().values())


def client_moments(run: Experiment, client: int = 0) -> list[torch.Tensor]:
    pool = run.parts.pool
    both = pool.ask(client, OwnState()) | pool.ask(client, SharedState())
    return [tensor for name, tensor in both.items() if "optimizer." in name]


def assert_same_tensors(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert one
    assert len(one) == len(other)
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


# one client


@pytest.mark.parametrize(
    ("optimizer", "method"),
    [("momentum", []), pytest.param("adam", [LIFT], marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "aggregation", quick(["splitfed_v1", "splitfed_v2", "fused"], "splitfed_v1", "fused")
)
def test_one_client_alone_trains_as_without_averaging(
    aggregation: str, optimizer: str, method: list[Any], tmp_path: Path
) -> None:
    common: dict[str, Any] = {"schedule": {"rounds": 3}, "evaluate": {"every": 1}}
    common |= {"train": both(OPTIMIZERS[optimizer]), "method": method}
    plain = train(tmp_path / "plain", [21], **common | {"schedule": ROUND_ROBIN})
    run = train(tmp_path / "run", [21], aggregation=aggregation, **common)
    assert_equal(weights_of(run), weights_of(plain))
    assert rounds_of(run, figures(run.scenario)) == rounds_of(plain, figures(plain.scenario))
    assert_same_tensors(server_moments(run), server_moments(plain))
    assert_same_tensors(client_moments(run), client_moments(plain))


@pytest.mark.parametrize("optimizer", quick(OPTIMIZERS, "adam"))
def test_a_reset_is_a_new_optimizer_for_the_trunk_every_round(
    optimizer: str, tmp_path: Path
) -> None:
    v1 = {"kind": "splitfed_v1", "moments": "reset"}
    run = train(tmp_path / "run", [21], aggregation=v1, train=both(OPTIMIZERS[optimizer]))
    joint = net(run)
    for number in range(2):
        joint.server = run.scenario.train.server.build(joint.trunk.parameters())
        for each in epoch(run, 0, number):
            joint.step(each)
    assert_equal(weights_of(run), joint.weights())
    assert run.parts.pool.workshop_state() == {}


# a trunk each


def train_apart(run: Experiment, rounds: int) -> list[Net]:
    """Train copies of everything apart, then set them to the average."""
    nets = [net(run) for _ in run.clients]
    for number in range(rounds):
        work = [epoch(run, client, number) for client in run.clients]
        for copy_, batches in zip(nets, work, strict=True):
            for each in batches:
                copy_.step(each)
        samples = [sum(len(each.labels) for each in batches) for batches in work]
        mean = average([(n.weights(), count) for n, count in zip(nets, samples, strict=True)])
        for copy_ in nets:
            copy_.take(mean)
    return nets


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "topology"), [("momentum", "u_shaped"), ("adam", "vanilla")])
def test_splitfed_v1_averages_copies_of_everything(
    optimizer: str, topology: str, tmp_path: Path
) -> None:
    run = train(
        tmp_path / "run",
        aggregation="splitfed_v1",
        topology=topology,
        train=both(OPTIMIZERS[optimizer]),
    )
    nets = train_apart(run, 2)
    assert_close(weights_of(run), nets[0].weights())
    copies = run.parts.pool.workshop_state()
    for client in run.clients:
        kept = [tensor for name, tensor in copies.items() if name.startswith(f"{client}/")]
        results = [*client_moments(run, client), *kept]
        wanted = moments([nets[client].client, nets[client].server])
        for one, other in zip(results, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("splitfed_v1", "momentum"), pytest.param(V2, "adam", marks=pytest.mark.slow)],
)
def test_fedprox_pulls_what_is_averaged_to_where_the_round_began(
    kind: str, optimizer: str, tmp_path: Path
) -> None:
    aggregation = {"kind": kind, "proximal": 0.5}
    common = {"train": both(OPTIMIZERS[optimizer]), "schedule": {"kind": "per_client", "rounds": 2}}
    run = train(tmp_path / "run", **common, aggregation=aggregation)
    apart = kind == "splitfed_v1"
    nets = [net(run) for _ in run.clients] if apart else nets_on_one_trunk(run)
    averages = ("head", "tail") if not apart else ("head", "trunk", "tail")
    for number in range(2):
        counts = []
        for copy_, client in zip(nets, run.clients, strict=True):
            copy_.proximal = 0.5
            copy_.hold(averages)
            batches = epoch(run, client, number)
            counts.append(sum(len(each.labels) for each in batches))
            for each in batches:
                copy_.step(each)
        pairs = [(n.weights(averages), count) for n, count in zip(nets, counts, strict=True)]
        mean = average(pairs)
        for copy_ in nets:
            copy_.take(mean)
    assert_close(weights_of(run), nets[0].weights())
    free = weights_of(train(tmp_path / "free", **common, aggregation=kind))
    assert not torch.equal(free["head.0.weight"], weights_of(run)["head.0.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["splitfed_v1", "splitfed_v2", "fused"])
def test_where_the_tail_is_changes_nothing_that_a_copy_of_it_would_not(
    aggregation: str, tmp_path: Path
) -> None:
    """v1 has a tail per client on either side; v2 and fused have one at the server's."""
    runs = [
        train(tmp_path / topology, aggregation=aggregation, topology=topology)
        for topology in ("u_shaped", "vanilla")
    ]
    ours, theirs = map(weights_of, runs)
    assert ours.keys() == theirs.keys()
    alike = all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert alike == (aggregation == "splitfed_v1")


# one trunk


@pytest.mark.parametrize(
    ("kind", "order", "topology"),
    [
        pytest.param("parallel", "number", "u_shaped", marks=pytest.mark.slow),
        ("parallel", "random", "u_shaped"),
        ("round_robin", "random", "vanilla"),
    ],
)
def test_splitfed_v2_steps_one_trunk_by_each_in_turn(
    kind: str, order: str, topology: str, tmp_path: Path
) -> None:
    schedule = {"kind": kind, "rounds": 3, "local_steps": 1, "order": order}
    run = begin(tmp_path / "run", aggregation=V2, schedule=schedule, topology=topology)
    tap = Recorder()
    run.parts.wire.taps.append(tap)
    nets = nets_on_one_trunk(run)
    orders = []
    for number in range(3):
        tap.packets.clear()
        train_round(run, number + 1)
        orders.append([packet.client for packet in tap.on(Leg.SMASHED)])
        for client in orders[-1]:
            nets[client].step(batch(run, client, number))
        if number == 0:  # nothing has been averaged yet
            for client, each in enumerate(nets):
                assert_equal(weights_of(run, client), each.weights())
        rows = [len(batch(run, client, number).labels) for client in run.clients]
        shared = ("head", "tail") if topology == "u_shaped" else ("head",)
        mean = average([(n.weights(shared), count) for n, count in zip(nets, rows, strict=True)])
        for each in nets:
            each.take(mean)
        run.parts.federation.settle(run.clients)
        assert_close(weights_of(run, 2), nets[2].weights())
    assert [sorted(each) for each in orders] == [[0, 1, 2]] * 3
    assert (orders == [[0, 1, 2]] * 3) == (order == "number")


@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_a_fused_lap_is_one_step_on_all_batches(topology: str, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", aggregation="fused", schedule=ONE_LAP, topology=topology)
    batches = [batch(run, client, 0) for client in run.clients]
    assert len({len(each.labels) for each in batches}) > 1
    nets = nets_on_one_trunk(run)
    rows = [len(each.labels) for each in batches]
    sent = [each.head(images.inputs) for each, images in zip(nets, batches, strict=True)]
    features = nets[0].trunk(torch.cat(sent)).split(rows)
    losses = [nets[c].loss(features[c], batches[c]) for c in run.clients]
    pooled = sum(loss * count for loss, count in zip(losses, rows, strict=True)) / sum(rows)
    assert isinstance(pooled, torch.Tensor)
    differentiate(pooled, nets[0].server)
    for each, loss in zip(nets, losses, strict=True):  # a client learns from its own mean loss
        differentiate(loss, each.client)
    for optimizer in (nets[0].server, *(each.client for each in nets)):
        optimizer.step()
    train_round(run, 1)
    for client in run.clients:
        assert_close(weights_of(run, client), nets[client].weights())


def differentiate(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Set the gradients of what an optimizer steps, and no others."""
    parameters = optimizer.param_groups[0]["params"]
    grads = torch.autograd.grad(loss, parameters, retain_graph=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad


def test_a_fused_laps_batch_norm_sees_all_batches_at_once(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", aggregation="fused", schedule=ONE_LAP, method=[LIFT])
    tap = Recorder()
    run.parts.wire.taps.append(tap)
    run.parts.exchange.announce(run.clients, counted=False)
    linear = run.parts.server.stack.smashed[0].module[0]
    before = [tensor.detach().clone() for tensor in (linear.weight, linear.bias)]
    train_round(run, 1)
    arrived = torch.cat([packet.tensors[0] for packet in tap.on(Leg.SMASHED)])
    norm = run.parts.server.stack.smashed[0].module[1]
    assert norm.num_batches_tracked.item() == 1
    mean = torch.nn.functional.linear(arrived, *before).mean(0)
    torch.testing.assert_close(norm.running_mean, norm.momentum * mean)


# no averages


@pytest.mark.parametrize("topology", quick(["u_shaped", "vanilla"], "u_shaped"))
def test_parallel_is_round_robin_to_everybody_but_the_clock(topology: str, tmp_path: Path) -> None:
    common = {"clients": {"heads": "per_client"}, "topology": topology}
    kinds = ("parallel", "round_robin")
    runs = [train(tmp_path / kind, schedule={"kind": kind}, **common) for kind in kinds]
    for name in ("rounds", "clients", "wire"):
        assert table(runs[0], name) == table(runs[1], name)
    for client in runs[0].clients:
        assert_equal(weights_of(runs[0], client), weights_of(runs[1], client))
        assert_same_tensors(client_moments(runs[0], client), client_moments(runs[1], client))
