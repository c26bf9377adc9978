"""A run on data and a network of one's own: a plain loop's weights, and all that other runs can."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from comparing import assert_equal
from texts import TINY as TEXTS
from texts import reviews
from torch import nn

from simsplit import SplitModel, load_sweep, own, run, run_sweep
from simsplit.data.batches import draw_batches
from simsplit.engine.cluster import run_with_cluster
from simsplit.errors import DataError, ScenarioError, SimsplitError
from simsplit.results import Run
from simsplit.results.checkpoints import compute_digest, load
from simsplit.scenario import load_scenario
from simsplit.scenario.files import dump

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=60) > 0).astype(int)
DATA = (X[:48], Y[:48]), (X[48:], Y[48:])
VALUES: dict[str, Any] = {
    "name": "own",
    "clients": {"count": 1},
    "schedule": {"kind": "round_robin", "rounds": 2},
    "train": {
        "batch_size": 8,
        "client": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    },
    "threads": 1,
    "output": {"figures": False},
}


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return net


def test_training_is_a_plain_loop(tmp_path: Path) -> None:
    net = network()
    run(VALUES, tmp_path / "run", data=DATA, model=SplitModel(net, cut=(2, 4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for epoch in range(2):
        for rows in draw_batches(torch.arange(48), 8, 0, 0, epoch, drop_last=False):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    scenario = load_scenario(tmp_path / "run" / "scenario.yaml")
    result = load(tmp_path / "run" / "checkpoints", compute_digest(scenario.identity()))
    assert result is not None
    ours = [tensor for tensor in result[0].values() if tensor.dtype == torch.float32]
    for parameter in net.parameters():
        alike = [tensor for tensor in ours if tensor.shape == parameter.shape]
        assert any(torch.equal(tensor, parameter) for tensor in alike)


def test_a_resumed_run_is_that_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    given = {"data": DATA, "model": SplitModel(network(), cut=(2, 4))}
    longer = {**VALUES, "schedule": {"kind": "round_robin", "rounds": 3}}
    run(longer, tmp_path / "whole", **given)
    run(VALUES, tmp_path / "parts", **given)
    run(longer, tmp_path / "parts", resume=True, **given)
    assert_equal(tmp_path / "whole", tmp_path / "parts")


class Dropping(nn.Linear):
    """Drops values by a function, which no layer shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def test_what_own_code_drops_follows_the_seed(tmp_path: Path) -> None:
    """Not what another run has left of the stream that all of a process draw from."""
    ends, trunk = network(), Dropping(8, 8)
    torch.nn.init.eye_(trunk.weight)
    head = nn.Sequential(Dropping(6, 8), nn.ReLU())
    torch.nn.init.ones_(head[0].weight)
    model = SplitModel(nn.Sequential(*head, trunk, *ends[3:]), cut=(2, 3))
    for name in ("one", "other"):
        run(VALUES, tmp_path / name, data=DATA, model=model)
    assert_equal(tmp_path / "one", tmp_path / "other")


def test_what_cannot_be_written_down_is_asked_for(tmp_path: Path) -> None:
    given = {"data": DATA, "model": SplitModel(network(), cut=(2, 4))}
    made = run(VALUES, tmp_path / "run", **given)
    assert made.scenario["data"]["source"]["kind"] == "given"
    assert len(made.rounds) == 2
    with pytest.raises(SimsplitError, match="digest"):
        run(VALUES, tmp_path / "run", resume=True, data=(X, 1 - Y), model=given["model"])
    forgotten = load_scenario(tmp_path / "run" / "scenario.yaml")
    assert forgotten.data.source.kind == "given"
    gone = dict(made.scenario["data"]["source"], digest="0" * 16)
    with pytest.raises(DataError, match=r"passed from Python.*data=\.\.\."):
        run({**VALUES, "data": {"source": gone}, "model": {"kind": "mlp"}}, tmp_path / "other")
    lost = {"kind": "given", "digest": "0" * 16}
    with pytest.raises(ScenarioError, match=r"passed from Python.*model=\.\.\."):
        run({**VALUES, "model": lost}, tmp_path / "another", data=DATA)


def test_parts_that_are_dealt_stay_with_their_clients(tmp_path: Path) -> None:
    parts = [(X[:10], Y[:10]), (X[10:40], Y[10:40]), (X[40:48], Y[40:48])]
    values = {**VALUES, "model": {"kind": "mlp", "widths": [8, 8]}}
    made = run(values, tmp_path / "run", data={"train": parts, "test": DATA[1]})
    held = made.holdings.groupby("client")["samples"].sum()
    assert held.tolist() == [10, 30, 8]
    assert made.clients.groupby("client")["samples"].first().tolist() == [10, 30, 8]


def test_a_file_and_own_data_make_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(dump({**VALUES, "sweep": {"seed": [0, 1]}}))
    changes = own(data=DATA, model=SplitModel(network(), cut=(2, 4), fresh=True))
    swept = run_sweep(load_sweep(file, changes), tmp_path / "sweep", jobs=1)
    assert not swept.failed
    assert len(swept.runs) == 2


@pytest.mark.ray
@pytest.mark.usefixtures("without_hosts")
@pytest.mark.slow
def test_hosts_and_workers_are_given_the_same(tmp_path: Path) -> None:
    values = {**VALUES, "clients": {"count": 3, "heads": "per_client"}}
    given = {"data": DATA, "model": SplitModel(network(), cut=(2, 4), fresh=True)}
    run(values, tmp_path / "inline", **given)
    file = tmp_path / "sweep.yaml"
    file.write_text(dump({**values, "sweep": {"seed": [0, 1]}}))
    with run_with_cluster(None, processors=2):  # started once for both
        run({**values, "engine": {"kind": "ray", "hosts": 2}}, tmp_path / "ray", **given)
        swept = run_sweep(load_sweep(file, own(**given)), tmp_path / "sweep", jobs=2)
    assert_equal(tmp_path / "inline", tmp_path / "ray")
    assert not swept.failed, swept.why()
    assert_equal(tmp_path / "inline", Run.load(next((tmp_path / "sweep").glob("seed=0"))).path)


@pytest.mark.slow
def test_texts_are_what_the_same_texts_from_files_are(tmp_path: Path) -> None:
    rows = {
        name: pq.read_table(reviews(tmp_path) / f"{name}.parquet") for name in ("train", "test")
    }
    values = {**TEXTS, "data": {}, "schedule": {"kind": "round_robin", "rounds": 1}}
    files = {"kind": "text_parquet", "path": str(tmp_path), "task": "sst2", "length": 32}
    run({**values, "data": {"source": files}}, tmp_path / "files")
    frames = {name: table.to_pandas() for name, table in rows.items()}
    run(values, tmp_path / "frames", data=frames, task="sst2", length=32)
    assert_equal(tmp_path / "files", tmp_path / "frames")
    names = ["negative", "positive"]
    strings = {
        name: (table["sentence"].to_pylist(), [names[n] for n in table["label"].to_pylist()])
        for name, table in rows.items()
    }
    task = {"kind": "classification", "prompt": "{text} It was", "names": names}
    run(values, tmp_path / "strings", data=strings, task=task, length=32)
    assert_equal(tmp_path / "files", tmp_path / "strings")


def test_texts_that_are_dealt_stay_with_their_clients(tmp_path: Path) -> None:
    parts = [(["fine", "dull", "grim"] * 2, [1, 0, 0] * 2), (["bright", "awful"], [1, 0])]
    changes = {**TEXTS, "data": {}, "schedule": {"kind": "round_robin", "rounds": 1}}
    made = run(changes, tmp_path / "run", data={"train": parts, "test": parts[0]}, length=16)
    assert made.holdings.groupby("client")["samples"].sum().tolist() == [6, 2]
