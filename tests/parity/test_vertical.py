"""Parties with columns of the same samples train as one network with a branch for each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from builders import StopAt, read_party_weights, run_to_end
from safetensors.torch import load_file
from torch import nn

from simsplit.assembly.exporting import export
from simsplit.assembly.trained import load_trained
from simsplit.data.batches import draw_batches
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.valuing.client_values import value_clients

GROUPS = {"lab": ["mean *"], "clinic": ["worst *"], "bank": ["* error"]}
TABLE: dict[str, Any] = {
    "name": "parties",
    "seed": 3,
    "topology": "vertical",
    "data": {
        "source": {"kind": "sklearn", "name": "breast_cancer"},
        "train_samples": 90,
        "test_samples": 40,
        "partition": {"kind": "columns", "groups": GROUPS},
    },
    "model": {"kind": "mlp", "widths": [6, 8, 5]},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {
        "batch_size": 16,
        "client": {"kind": "adam", "lr": 0.01},
        "server": {"kind": "adam", "lr": 0.01},
    },
    "threads": 1,
    "output": {"figures": False},
}
IMAGES: dict[str, Any] = {
    "data": {"source": {"kind": "digits", "size": 8}, "partition": {"kind": "parts", "parts": 4}},
}


def given(**changes: Any) -> Scenario:
    values = merge(TABLE, changes)
    if "data" in changes:
        values["data"] = {"train_samples": 90, "test_samples": 40, **changes["data"]}
    return parse(values)


class Branches(nn.Module):
    """A network with a branch for each party, written without simsplit's parties."""

    def __init__(self, scenario: Scenario, widths: list[int], how: str) -> None:
        super().__init__()
        made = scenario.model.build((widths[0],), 2, scenario.seed)
        self.heads = nn.ModuleList(
            [scenario.model.segment("head", (width,), 2, scenario.seed) for width in widths]
        )
        self.trunk, self.tail, self.how = made.trunk, made.tail, how
        joined = (len(widths) if how == "concat" else 1) * made.cut_shape[0]
        self.trunk = scenario.model.build((widths[0],), 2, scenario.seed, joined=(joined,)).trunk

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        outs = [head(x) for head, x in zip(self.heads, parts, strict=True)]
        if self.how == "concat":
            joined = torch.cat(outs, 1)
        else:
            joined = outs[0] + outs[1] + outs[2]
            joined = joined / 3 if self.how == "mean" else joined
        return self.tail(self.trunk(joined))


class Halved(torch.autograd.Function):
    """Values and their gradients as half-precision numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.half().float()


def train_plainly(scenario: Scenario, *cuts: Callable[[torch.Tensor], torch.Tensor]) -> Branches:
    """Train the branches with one optimizer, in a loop of its own; `cuts` follow the heads."""
    data = scenario.prepare_data()
    columns = [portion.index[0] for portion in data.portions]
    net = Branches(scenario, [len(each) for each in columns], scenario.joining.join)
    for head, cut in zip(net.heads, cuts, strict=False):
        head.register_forward_hook(lambda _, __, out, cut=cut: cut(out))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(2):
        rows = torch.arange(len(data.train))
        for batch in draw_batches(rows, 16, scenario.seed, 0, epoch, drop_last=False):
            x, y = data.train.inputs[batch], data.train.labels[batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net([x[:, each] for each in columns]), y).backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("how", ["concat", "sum", "mean"])
@pytest.mark.parametrize("labels", ["party", "server"])
def test_parties_equal_a_network_with_branches(how: str, labels: str, tmp_path: Path) -> None:
    scenario = given(vertical={"join": how, "labels": labels, "party": "clinic"})
    weights = read_party_weights(run_to_end(scenario, tmp_path / "run"))
    plain = train_plainly(scenario)
    owner = "1" if labels == "party" else "server"
    expected = {
        f"{k}.head.{n}": t for k, h in enumerate(plain.heads) for n, t in h.state_dict().items()
    }
    expected |= {f"server.trunk.{n}": t for n, t in plain.trunk.state_dict().items()}
    expected |= {f"{owner}.tail.{n}": t for n, t in plain.tail.state_dict().items()}
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


PROJECTED = {"kind": "lightsplit", "k": 4, "broadcast": "matrix"}


def test_chains_of_their_own_equal_branches_with_projections(tmp_path: Path) -> None:
    """The lab sends raw values, the clinic projected ones, the bank halves of the precision."""
    own = [{**PROJECTED, "by": "party clinic"}, {"kind": "cast", "by": "party 2"}]
    scenario = given(vertical={"party": "clinic"}, method=own)
    run = run_to_end(scenario, tmp_path / "run")
    server, weights = run.parts.server, read_party_weights(run)
    assert [sum(map(len, server.announce(party))) for party in range(3)] == [0, 1, 0]
    ((matrix,),) = server.announce(1)
    plain = train_plainly(scenario, lambda z: z, lambda z: z @ matrix @ matrix.T, Halved.apply)
    for party, head in enumerate(plain.heads):
        for name, tensor in head.state_dict().items():
            assert torch.equal(weights[f"{party}.head.{name}"], tensor), (party, name)
    for name, tensor in plain.trunk.state_dict().items():
        assert torch.equal(weights[f"server.trunk.{name}"], tensor), name
    wire = Run.load(run.path).wire
    sent = wire[(wire["phase"] == "train") & (wire["round"] == 1) & (wire["leg"] == "smashed")]
    assert [*sent.sort_values("client")["bytes"]] == [90 * 6 * 4, 90 * 4 * 4, 90 * 6 * 2]
    network, test = load_trained(run.path), run.data.test
    hits = (network.predict(test.inputs) == test.labels).double().mean().item()
    assert hits == pytest.approx(Run.load(run.path).rounds["test_accuracy"].iloc[-1])


def test_parties_with_equal_chains_equal_one_chain(tmp_path: Path) -> None:
    """Draws, projections and learned lifts are those of a single chain for all."""
    chain = [{"kind": "noise"}, {"kind": "lightsplit", "k": 4, "lift": "learned", "hidden": 8}]
    apart = [{**each, "by": f"party {who}"} for who in GROUPS for each in chain]
    runs = [
        run_to_end(given(method=method), tmp_path / name)
        for method, name in ((chain, "one"), (apart, "apart"))
    ]
    first, second = map(read_party_weights, runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    mine, theirs = (Run.load(each.path).wire for each in runs)
    pd.testing.assert_frame_equal(mine, theirs)


def test_each_party_hears_the_projection_by_which_it_is_lifted(tmp_path: Path) -> None:
    scenario = given(vertical={"party": "clinic"}, method=[PROJECTED])
    run = run_to_end(scenario, tmp_path / "run")
    matrices = [run.parts.server.announce(party)[0][0] for party in range(3)]
    assert not torch.equal(matrices[0], matrices[1])
    cuts = [lambda z, R=matrix: z @ R @ R.T for matrix in matrices]
    plain, weights = train_plainly(scenario, *cuts), read_party_weights(run)
    for party, head in enumerate(plain.heads):
        for name, tensor in head.state_dict().items():
            assert torch.equal(weights[f"{party}.head.{name}"], tensor), (party, name)


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ({"kind": "noise", "by": "party lap"}, "by"),
        ({"kind": "noise", "by": "party 3"}, "by"),
        ({"kind": "lightsplit", "legs": ["features"], "by": "party lab"}, "by"),
        ({"kind": "max_norm", "by": "party lab"}, "by"),
        ({"kind": "wcc", "by": "party lab"}, "by"),
        ({"kind": "wcc"}, "kind"),
        ({"kind": "lightsplit", "k": 7, "by": "party lab"}, "k"),
    ],
)
def test_a_method_that_cannot_work_at_a_party_is_refused(method: Any, field: str) -> None:
    cast = {"kind": "cast", "by": "party bank"}
    with pytest.raises(ScenarioError) as error:
        given(method=[cast, method])
    assert error.value.field == f"method.1.{field}"


def test_methods_are_ordered_within_a_party_alone() -> None:
    """One party may cast and another quantise; the label's party alone may read labels."""
    cast, few = {"kind": "cast", "by": "party lab"}, {"kind": "quantise", "by": "party 1"}
    labels = {"kind": "wcc", "by": "party clinic"}
    scenario = given(vertical={"party": "clinic"}, method=[cast, few, labels])
    assert [[*scenario.select_methods(party)] for party in range(3)] == [[0], [1, 2], []]
    with pytest.raises(ScenarioError) as error:
        given(method=[cast, {**few, "by": "party 0"}])
    assert error.value.field == "method.1.kind"


def test_clients_of_another_topology_have_one_chain() -> None:
    with pytest.raises(ScenarioError) as error:
        parse({"method": [{"kind": "noise", "by": "party 0"}]})
    assert error.value.field == "method.0.by"


@pytest.mark.parametrize(("labels", "topology"), [("party", "u_shaped"), ("server", "vanilla")])
def test_one_party_is_one_client(labels: str, topology: str, tmp_path: Path) -> None:
    """One party equals one client of a U shape, or of a vanilla cut, in weights and tables."""
    alone = {"kind": "columns", "groups": {"all": ["*"]}}
    vertical = given(data={**TABLE["data"], "partition": alone}, vertical={"labels": labels})
    usual = given(
        topology=topology,
        data={**TABLE["data"], "partition": "iid"},
        clients={"count": 1, "heads": "per_client"},
    )
    runs = [run_to_end(each, tmp_path / each.topology) for each in (vertical, usual)]
    first, second = map(read_party_weights, runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    mine, theirs = (Run.load(each.path) for each in runs)
    pd.testing.assert_frame_equal(mine.rounds, theirs.rounds)
    pd.testing.assert_frame_equal(mine.wire, theirs.wire)


def test_bytes_are_rows_times_width_times_four(tmp_path: Path) -> None:
    """90 rows, a cut of 6 and features of 5 floats."""
    run_to_end(given(vertical={"party": 0}), tmp_path / "run")
    wire = Run.load(tmp_path / "run").wire
    training = wire[(wire["phase"] == "train") & (wire["round"] == 1)]
    counted = {(row.client, row.leg): row.bytes for row in training.itertuples()}
    cut, features = 90 * 6 * 4, 90 * 5 * 4
    assert counted == {
        **{(party, leg): cut for party in range(3) for leg in ("smashed", "smashed_grad")},
        (0, "features"): features,
        (0, "features_grad"): features,
    }


def test_the_order_of_parties_in_a_round_changes_nothing(tmp_path: Path) -> None:
    """The server joins by the parties' numbers, whoever is asked first."""
    orders = ("number", "random")
    runs = [
        run_to_end(given(schedule={"order": order, "rounds": 3}), tmp_path / order)
        for order in orders
    ]
    first, second = map(read_party_weights, runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


ABSENT = {
    "cohort": {"availability": {"period": 3, "window": 2}},
    "schedule": {"rounds": 6},
    "seed": 5,
}
"""Each party is there in two of three rounds."""


def train_with_absences(scenario: Scenario) -> Branches:
    """Train the branches in a loop that leaves out the parties that are away in a round."""
    data, how = scenario.prepare_data(), scenario.joining.absent
    columns = [portion.index[0] for portion in data.portions]
    net = Branches(scenario, [len(each) for each in columns], "concat")
    own = [torch.optim.Adam(head.parameters(), lr=0.01) for head in net.heads]
    own[-1] = torch.optim.Adam([*net.heads[-1].parameters(), *net.tail.parameters()], lr=0.01)
    server = torch.optim.Adam(net.trunk.parameters(), lr=0.01)
    kept = torch.zeros(3, len(data.train), 6)
    window, rows = scenario.cohort.availability, torch.arange(len(data.train))
    assert window is not None
    for epoch in range(6):
        marked = window.mark_available(3, epoch + 1, scenario.seed)
        there = [party for party in range(3) if marked[party]]
        if 2 not in there or (how == "wait" and len(there) < 3):
            continue
        for batch in draw_batches(rows, 16, scenario.seed, 0, epoch, drop_last=False):
            x, y = data.train.inputs[batch], data.train.labels[batch]
            outs = [net.heads[party](x[:, columns[party]]) for party in range(3)]
            for party in range(3):
                if party in there:
                    kept[party, batch] = outs[party].detach()
                else:
                    known = kept[party, batch]
                    outs[party] = known if how == "last" else torch.zeros_like(known)
            loss = nn.functional.cross_entropy(net.tail(net.trunk(torch.cat(outs, 1))), y)
            loss.backward()
            for optimizer in (*(own[party] for party in there), server):
                optimizer.step()
            net.zero_grad(set_to_none=True)
    return net


@pytest.mark.parametrize("how", ["wait", "zeros", "last"])
def test_parties_that_are_away_equal_a_loop_without_them(how: str, tmp_path: Path) -> None:
    scenario = given(**ABSENT, vertical={"absent": how})
    weights = read_party_weights(run_to_end(scenario, tmp_path / "run"))
    plain = train_with_absences(scenario)
    for party, head in enumerate(plain.heads):
        for name, tensor in head.state_dict().items():
            assert torch.equal(weights[f"{party}.head.{name}"], tensor), (party, name)
    for name, tensor in plain.trunk.state_dict().items():
        assert torch.equal(weights[f"server.trunk.{name}"], tensor), name


def test_a_killed_run_with_absent_parties_resumes_equal(tmp_path: Path) -> None:
    """The server's memory of absent parties is in checkpoints."""
    scenario = given(**ABSENT, vertical={"absent": "last"}, method=[{"kind": "noise"}])
    whole = run_to_end(scenario, tmp_path / "whole")
    stopped = Experiment(scenario, tmp_path / "run", [StopAt(17)])
    with pytest.raises(KeyboardInterrupt):
        stopped.run(resume=False)
    resumed = Experiment(scenario, tmp_path / "run")
    resumed.run(resume=True)
    first, second = read_party_weights(whole), read_party_weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for table in ("rounds", "clients", "wire"):
        mine, theirs = (getattr(Run.load(each.path), table) for each in (whole, resumed))
        pd.testing.assert_frame_equal(mine, theirs)


def test_a_party_that_drops_out_sends_a_packet_that_changes_nothing(tmp_path: Path) -> None:
    """Whoever leaves in a step has sent something; the others wait, or go on without it."""
    scenario = given(cohort={"dropout": 0.5}, vertical={"absent": "wait"})
    run = run_to_end(scenario, tmp_path / "run")
    tables = Run.load(run.path)
    assert tables.clients["dropped"].sum() > 0
    training = tables.wire[tables.wire["phase"] == "train"]
    sent = training[training["leg"] == "smashed"]["packets"].sum()
    returned = training[training["leg"] == "smashed_grad"]["packets"].sum()
    assert sent == returned + tables.clients["dropped"].sum()
    assert (tables.rounds["steps"] < 6).any()


def test_columns_that_say_nothing_of_the_labels_help_nobody(tmp_path: Path) -> None:
    """Labels are a function of party 0's column; leaving party 1 out changes no prediction."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 6)), columns=[*"abcdef"])
    frame["label"] = np.where(frame["a"] + frame["b"] > 0, "yes", "no")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    groups = {"first": ["a", "b"], "second": ["c", "d"], "third": ["e", "f"]}
    scenario = given(
        data={
            "source": {"kind": "table", "path": str(tmp_path / "rows.csv")},
            "partition": {"kind": "columns", "groups": groups},
            "train_samples": None,
            "test_samples": None,
        },
        schedule={"rounds": 20},
        evaluate={"every": 0},
    )
    run_to_end(scenario, tmp_path / "run")
    table = value_clients(tmp_path / "run")
    values = dict(zip(table["client"], table["value"], strict=True))
    assert values[0] > 0.25
    assert abs(values[1]) < 0.06
    assert abs(values[2]) < 0.06  # it keeps its labels when its columns are left out


def test_parties_take_a_step_at_once_in_simulated_time(tmp_path: Path) -> None:
    """The trunk waits for the slowest link alone, not for the sum of all."""
    network = {"network": {"device": "laptop", "link": "lte"}}
    alone = {**TABLE["data"], "partition": {"kind": "columns", "groups": {"all": ["*"]}}}
    three = run_to_end(given(**network), tmp_path / "three")
    one = run_to_end(given(**network, data=alone), tmp_path / "one")
    both = [Run.load(each.path).rounds["simulated_s"].sum() for each in (three, one)]
    assert both[0] == pytest.approx(both[1], rel=0.02)


@pytest.mark.parametrize("method", [[], [{"kind": "lightsplit", "ratio": 2}]])
def test_a_trained_network_of_parties_is_exported(method: list[Any], tmp_path: Path) -> None:
    """It takes whole samples, and predicts what the run's evaluation did."""
    scenario = given(vertical={"party": "lab"}, method=method)
    run = run_to_end(scenario, tmp_path / "run")
    network, test = load_trained(tmp_path / "run"), run.data.test
    hits = (network.predict(test.inputs) == test.labels).double().mean().item()
    assert hits == pytest.approx(Run.load(tmp_path / "run").rounds["test_accuracy"].iloc[-1])
    files = export(network, tmp_path / "out", "safetensors")
    assert sum(t.numel() for t in load_file(files[0]).values()) >= sum(
        t.numel() for n, t in read_party_weights(run).items() if ".head." in n
    )
