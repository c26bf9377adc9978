"""A client is the same whether a few or many others exist, and whatever the threads do."""

from pathlib import Path

import torch
from builders import experiment, scenario

from simsplit.bench.overhead import feed_of
from simsplit.parties.calls import OwnState


def test_a_clients_weights_and_streams_do_not_depend_on_the_others(tmp_path: Path) -> None:
    own = {"heads": "per_client", "start": "own"}
    few = experiment(scenario(clients={"count": 3, **own}), tmp_path / "few")
    many = experiment(scenario(clients={"count": 20, **own}), tmp_path / "many")
    for client in range(3):
        one = few.parts.pool.ask(client, OwnState())
        other = many.parts.pool.ask(client, OwnState())
        assert all(torch.equal(one[name], other[name]) for name in one)
        rows = [feed_of(run.parts, client).seed for run in (few, many)]
        assert rows[0] == rows[1]
    heads = [many.parts.pool.ask(client, OwnState())["own.0.head.0.weight"] for client in (0, 1)]
    assert not torch.equal(*heads)


def test_clients_that_start_the_same_do(tmp_path: Path) -> None:
    run = experiment(scenario(clients={"heads": "per_client", "start": "same"}), tmp_path / "run")
    states = [run.parts.pool.ask(client, OwnState()) for client in (0, 1)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_assembling_leaves_the_global_streams_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    experiment(scenario(method=[{"kind": "learned1x1"}]), tmp_path / "run").run(resume=False)
    assert torch.equal(torch.get_rng_state(), before)
