"""Clients with cuts of their own train as plain loops over the same layers do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, run_to_end, scenario
from comparing import assert_equal as assert_same_runs
from hosted import on_hosts
from plain_loops import UNEQUAL, Weights, assert_equal, begin, epoch, train, weights_of
from texts import CAUSAL, text_scenario
from torch import Tensor, nn

import simsplit
from simsplit.assembly.exporting import export
from simsplit.assembly.trained import load_trained
from simsplit.data.batches import Batch
from simsplit.engine.ray_pool import Hosts
from simsplit.errors import RunError
from simsplit.experiment import Experiment
from simsplit.models.tabular import Mlp
from simsplit.parties.calls import SharedState
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.results import Run
from simsplit.scenario import Scenario
from simsplit.schedules.averaging import Averager
from simsplit.schedules.strategies import FedAvg
from simsplit.states import select_below

MLP: dict[str, Any] = {"kind": "mlp", "widths": [16, 12, 10, 8], "head": 1, "tail": 1}
CUTS = (1, 3, 2)
ADAM = {"kind": "adam", "lr": 2e-3, "weight_decay": 0.01}
MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
OWN: dict[str, Any] = {
    "model": MLP,
    "clients": {"cut": list(CUTS), "heads": "per_client"},
    "train": {"client": ADAM, "server": MOMENTUM},
}
AVERAGED: dict[str, Any] = {
    "model": MLP,
    "clients": {"cut": list(CUTS)},
    "train": {"client": MOMENTUM, "server": ADAM},
    "aggregation": "splitfed_v2",
}


# one cut


@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_one_cut_for_all_is_the_model_cut_there(topology: str, tmp_path: Path) -> None:
    """By a number, a list, a device and a name."""
    common: dict[str, Any] = {"model": {**MLP, "head": 2}, "topology": topology, "network": {}}
    plain = run_to_end(scenario(**common), tmp_path / "plain")
    names = ["Bonn", "Graz", "Oslo"]
    ways: list[dict[str, Any]] = [{"cut": 2}, {"cut": [2, 2, 2]}, {"cut": {"laptop": 2}}]
    for number, clients in enumerate([*ways, {"cut": {"Graz": 2}, "names": names}]):
        path = tmp_path / str(number)
        run = run_to_end(scenario(**common, clients=clients), path)
        assert_equal(weights_of(run), weights_of(plain))
        if "names" not in clients:
            for table in ("rounds", "clients", "wire"):
                one, other = (each / f"{table}.csv" for each in (path, tmp_path / "plain"))
                assert one.read_text() == other.read_text()


# two sides by hand


@dataclass
class Side:
    """A client's own segments, with their optimizer."""

    own: dict[str, nn.Module]
    learn: torch.optim.Optimizer

    def weights(self) -> Weights:
        return list_weights(self.own)


@dataclass
class Served:
    """The server's segments, with their optimizer; the trunk layer by layer."""

    own: dict[str, nn.Module]
    learn: torch.optim.Optimizer

    def weights(self) -> Weights:
        return list_weights(self.own)


def list_weights(own: Mapping[str, nn.Module]) -> Weights:
    return {f"{name}.{k}": t for name, part in own.items() for k, t in part.state_dict().items()}


def build(run: Experiment) -> tuple[list[Side], Served]:
    """Build all parts as a run begins with them."""
    given, info = run.scenario, run.data.info
    served = ("trunk", "tail") if given.topology == "vanilla" else ("trunk",)

    def make(place: int) -> Any:
        model = Mlp.model_validate({**MLP, "head": place})
        return model.build(info.shape, info.classes, given.seed)

    def join(net: Any, names: Sequence[str], optimizer: OptimizerConfig) -> Any:
        parts = {name: getattr(net, name) for name in names}
        learned = [weight for part in parts.values() for weight in part.parameters()]
        return parts, optimizer.build(learned)

    kept = [name for name in ("head", "tail") if name not in served]
    sides = [Side(*join(make(place), kept, given.train.client)) for place in CUTS]
    return sides, Served(*join(make(min(CUTS)), served, given.train.server))


def step(side: Side, place: int, served: Served, batch: Batch) -> None:
    """Take one step of everything that a client's samples pass."""
    x = side.own["head"](batch.inputs)
    for layer in [*served.own["trunk"].children()][2 * (place - 1) :]:  # each with its activation
        x = layer(x)
    tail = (side.own | served.own)["tail"]
    nn.functional.cross_entropy(tail(x), batch.labels).backward()
    for optimizer in (served.learn, side.learn):
        optimizer.step()
        optimizer.zero_grad()


def take_laps(run: Experiment, sides: list[Side], served: Served, number: int) -> list[int]:
    """Take a round of steps in turn, and return each client's samples."""
    work = [epoch(run, client, number) for client in run.clients]
    for lap in range(max(map(len, work))):
        for client, batches in enumerate(work):
            if lap < len(batches):
                step(sides[client], CUTS[client], served, batches[lap])
    return [sum(len(each.labels) for each in batches) for batches in work]


@pytest.mark.parametrize("schedule", ["round_robin", "parallel"])
@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_own_heads_enter_one_trunk_where_each_ends(
    topology: str, schedule: str, tmp_path: Path
) -> None:
    kind = {"kind": schedule, "rounds": 2}
    run = begin(tmp_path / "run", topology=topology, **OWN | {"schedule": kind})
    sides, served = build(run)
    run.run(resume=False)
    for number in range(2):
        take_laps(run, sides, served, number)
    for client, side in enumerate(sides):
        assert_equal(weights_of(run, client), side.weights() | served.weights())


def average_overlaps(
    sides: list[Side], samples: list[int], mean: dict[str, Any]
) -> Mapping[str, Tensor]:
    """Average each weight over those who have it, by Flower's strategy, one weight at a time."""
    made = {}
    for name, averager in mean.items():
        have = {c: s.weights() for c, s in enumerate(sides) if name in s.weights()}
        averager.average(1, {c: ({name: w[name]}, samples[c]) for c, w in have.items()})
        made[name] = averager.weights[name]
    for side in sides:
        for name, tensor in side.weights().items():
            tensor.copy_(made[name])
    return made


@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_shared_heads_are_averaged_where_they_overlap(topology: str, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", topology=topology, **AVERAGED)
    sides, served = build(run)
    deepest = sides[CUTS.index(max(CUTS))].weights()
    mean = {name: Averager(FedAvg(), {name: tensor}, "here") for name, tensor in deepest.items()}
    run.run(resume=False)
    made: Mapping[str, Tensor] = {}
    for number in range(2):
        samples = take_laps(run, sides, served, number)
        made = average_overlaps(sides, samples, mean)
    assert run.parts.federation is not None
    assert run.parts.federation.shared is not None
    assert_equal(run.parts.federation.shared.weights, made)
    assert_equal(run.parts.pool.ask(1, SharedState()), sides[1].weights())


def test_splitfed_v1_averages_a_layer_of_the_trunk_over_those_who_pass_it(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", **AVERAGED | {"aggregation": "splitfed_v1"})
    sides, _ = build(run)
    trunks = [build(run)[1] for _ in CUTS]
    deepest = sides[CUTS.index(max(CUTS))].weights()
    heads = {name: Averager(FedAvg(), {name: tensor}, "here") for name, tensor in deepest.items()}
    middle = {n: Averager(FedAvg(), {n: t}, "here") for n, t in trunks[0].weights().items()}
    run.run(resume=False)
    for number in range(2):
        samples = []
        for client, place in enumerate(CUTS):
            work = epoch(run, client, number)
            for each in work:
                step(sides[client], place, trunks[client], each)
            samples.append(sum(len(each.labels) for each in work))
        average_overlaps(sides, samples, heads)
        for name, averager in middle.items():
            layer = int(name.split(".")[1])
            passing = [c for c, place in enumerate(CUTS) if layer >= 2 * (place - 1)]
            sent = {c: ({name: trunks[c].weights()[name]}, samples[c]) for c in passing}
            averager.average(1, sent)
            for trunk in trunks:
                trunk.weights()[name].copy_(averager.weights[name])
    assert run.parts.federation is not None
    assert run.parts.federation.shared is not None
    ours = {name: averager.weights[name] for name, averager in heads.items()}
    assert_equal(run.parts.federation.shared.weights, ours)
    assert_equal(run.parts.server.learner.weights(), trunks[0].weights())


# bytes, by hand


def test_each_client_sends_what_its_own_cut_gives(tmp_path: Path) -> None:
    """By hand: 21, 13 and 6 samples, whose heads give 16, 10 and 12 values; features are 8."""
    run = train(tmp_path / "run", **AVERAGED)
    wire = Run.load(run.path).wire
    sent = wire[wire["round"] == 1].set_index(["client", "leg"])["bytes"]
    inputs = int(torch.tensor(run.data.info.shape).prod())
    layers = [inputs * 16 + 16, 16 * 12 + 12, 12 * 10 + 10]
    forms = zip(UNEQUAL, (16, 10, 12), CUTS, strict=True)
    for client, (samples, values, depth) in enumerate(forms):
        assert sent[client, "smashed"] == sent[client, "smashed_grad"] == 4 * samples * values
        assert sent[client, "features"] == sent[client, "features_grad"] == 4 * samples * 8
        shared = sum(layers[:depth]) + 8 * 10 + 10  # and the tail
        assert sent[client, "broadcast"] == sent[client, "handover"] == 4 * shared


# everywhere alike

CASES: dict[str, dict[str, Any]] = {
    "own heads": OWN,
    "own heads, drawn": {**OWN, "clients": {**OWN["clients"], "start": "own", "tail": "shared"}},
    "averaged": {**AVERAGED, "schedule": {"kind": "parallel", "rounds": 3}},
    "trunks averaged, fedadam": {
        **AVERAGED,
        "aggregation": {"kind": "splitfed_v1", "strategy": "fedadam"},
        "cohort": {"fraction": 0.6},
        "schedule": {"kind": "parallel", "rounds": 4},
    },
    "as they come": {
        **OWN,
        "schedule": {"kind": "asynchronous", "rounds": 3},
        "network": {"device": {"phone": 1, "workstation": 2}},
        "clients": {"heads": "per_client", "cut": {"workstation": 3}, "count": 4},
    },
    "blocks, recomputed": {
        "model": {"kind": "resnet20", "width": 2, "cut": 2},
        "clients": {"cut": [2, 5, 2]},
        "aggregation": "splitfed_v2",
        "train": {"checkpointing": True},
    },
}
TEXTS: dict[str, dict[str, Any]] = {
    "words": {
        "model": CAUSAL | {"lora": {"rank": 2}, "sizes": {"width": 16, "layers": 4}},
        "clients": {"cut": [1, 2], "heads": "per_client"},
    },
    "encoders": {
        "model": {"sizes": {"family": "bert", "width": 16, "layers": 4}},
        "clients": {"cut": [1, 2]},
        "aggregation": "splitfed_v1",
        "method": [{"kind": "cast", "to": "bf16"}],
    },
}


def make(case: str, path: Path) -> Scenario:
    made: Scenario
    made = scenario(**CASES[case]) if case in CASES else text_scenario(path, **TEXTS[case])
    return made


@pytest.mark.parametrize("case", [*CASES, *TEXTS])
def test_interrupted_and_resumed(case: str, tmp_path: Path) -> None:
    given = make(case, tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_to_end(given, whole)
    steps = int(Run.load(whole).rounds["steps"].sum())
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, broken, [StopAt(2 * steps // 3)]).run(resume=False)
    Experiment(given, broken).run(resume=True)
    assert_same_runs(whole, broken)


@pytest.mark.ray
@pytest.mark.parametrize("case", [*CASES, *TEXTS])
def test_on_hosts(case: str, hosts: Hosts, tmp_path: Path) -> None:
    given = make(case, tmp_path)
    run_to_end(given, tmp_path / "here")
    on_hosts(given, tmp_path / "there", hosts).run(resume=False)
    assert_same_runs(tmp_path / "here", tmp_path / "there")


@pytest.mark.parametrize("case", [*CASES, *TEXTS])
def test_forecast(case: str, tmp_path: Path) -> None:
    given = make(case, tmp_path)
    forecast = simsplit.plan(given, timing=False)
    run_to_end(given, tmp_path / "run")
    wire = Run.load(tmp_path / "run").wire
    kept = ["round", "client", "phase", "leg", "packets", "bytes"]
    ours, theirs = (each[kept].sort_values(kept) for each in (forecast.wire, wire))
    assert ours.to_numpy().tolist() == theirs.to_numpy().tolist()
    parties = list(forecast.memory["party"])
    assert len(parties) == len(set(given.places)) + 1


@pytest.mark.parametrize("client", [0, 1])
def test_a_clients_network_is_loaded_as_it_is_cut_for_it(client: int, tmp_path: Path) -> None:
    run = run_to_end(scenario(**AVERAGED), tmp_path / "run")
    made = load_trained(tmp_path / "run", client)
    assert run.parts.federation is not None
    run.parts.federation.settle([client])
    mine = select_below(run.parts.pool.ask(client, SharedState()), "head.")
    assert_equal(made.head.state_dict(), mine)
    trunk = run.parts.server.end.trunk.state_dict()
    behind = [trunk[name] for name in trunk if int(name.split(".")[0]) >= 2 * (CUTS[client] - 1)]
    assert all(map(torch.equal, made.trunk.state_dict().values(), behind))
    assert getattr(made.scenario.model, "head", None) == CUTS[client]


@pytest.mark.parametrize("client", [0, 1])
def test_a_clients_network_is_exported_as_the_model_cut_there(client: int, tmp_path: Path) -> None:
    run = run_to_end(scenario(**AVERAGED), tmp_path / "run")
    made = load_trained(tmp_path / "run", client)
    export(made, tmp_path / "out", "safetensors")
    values = {**MLP, "head": CUTS[client], "weights": str(tmp_path / "out")}
    info = run.data.info
    fresh = scenario(model=values).model.build(info.shape, info.classes, seed=5)
    for name in ("head", "trunk", "tail"):
        assert_equal(getattr(fresh, name).state_dict(), getattr(made, name).state_dict())


def test_a_network_of_several_cuts_is_not_loaded_without_a_client(tmp_path: Path) -> None:
    run_to_end(scenario(**AVERAGED), tmp_path / "run")
    with pytest.raises(RunError):
        load_trained(tmp_path / "run")
