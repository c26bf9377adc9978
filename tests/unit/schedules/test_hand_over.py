"""What clients share travels exactly when the client changes, and nothing else does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import enter_round, experiment, scenario
from by_hand import Recorder
from torch import Tensor

from simsplit.engine.pool import InlinePool
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.calls import Begin, HandOver, Receive, SharedState

HEAD = 1 * 20 * 25 + 20  # the first convolution
TAIL = 512 * 10 + 10
L1H: dict[str, Any] = {"model": {"cut": "l1h"}, "evaluate": {"every": 0}}


def record(path: Path, **changes: Any) -> tuple[Experiment, Recorder]:
    made = experiment(scenario(**{**L1H, **changes}), path)
    tap = Recorder()
    made.parts.wire.taps.append(tap)
    return made, tap


def list_handed(path: Path, **changes: Any) -> list[Packet]:
    made, tap = record(path, **changes)
    made.run(resume=False)
    return tap.on(Leg.HANDOVER)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("round_robin", [0, 1, 2, 0, 1], [2, 0, 1, 2, 0, 1]),
        ("per_client", [0, 1], [2, 0, 1]),
    ],
)
def test_it_travels_when_the_client_changes(
    kind: str, first: list[int], second: list[int], tmp_path: Path
) -> None:
    """Three clients of two batches, two rounds; the second starts with a way back."""
    packets = list_handed(tmp_path / "run", schedule={"kind": kind, "rounds": 2})
    sent = [(packet.round, packet.client) for packet in packets]
    assert sent == [(1, client) for client in first] + [(2, client) for client in second]


@pytest.mark.parametrize(
    "clients", [{"count": 1}, {"count": 3, "heads": "per_client", "tail": "own"}]
)
def test_nothing_travels_where_nothing_is_shared(clients: dict[str, Any], tmp_path: Path) -> None:
    assert list_handed(tmp_path / "run", clients=clients) == []


@pytest.mark.parametrize(
    ("changes", "nbytes"),
    [
        ({}, 4 * 2 * (HEAD + TAIL)),
        ({"clients": {"handover": "weights"}}, 4 * (HEAD + TAIL)),
        ({"clients": {"heads": "per_client", "tail": "shared"}}, 4 * 2 * TAIL),
        ({"topology": "vanilla"}, 4 * 2 * HEAD),
    ],
)
def test_what_travels_is_what_is_shared(
    changes: dict[str, Any], nbytes: int, tmp_path: Path
) -> None:
    packets = list_handed(tmp_path / "run", **changes, schedule={"rounds": 1})
    assert {packet.nbytes for packet in packets} == {nbytes}


def test_a_replaced_hand_over_takes_effect(tmp_path: Path) -> None:
    made, _ = record(tmp_path / "run")
    pool = made.parts.pool
    enter_round(made, 1)
    made.parts.exchange.step(0)
    packet = pool.ask(0, HandOver(1))
    before = {name: t.clone() for name, t in pool.ask(1, SharedState()).items()}
    pool.ask(1, Receive(packet))
    assert all(torch.equal(pool.ask(1, SharedState())[name], before[name]) for name in before)
    tampered = replace(packet, tensors=tuple(torch.full_like(t, 0.5) for t in packet.tensors))
    pool.ask(1, Receive(tampered))
    state = pool.ask(1, SharedState())
    assert any("momentum_buffer" in name for name in state)
    assert all((tensor == 0.5).all() for tensor in state.values())


def test_the_next_client_trains_with_what_it_was_handed(tmp_path: Path) -> None:
    made, _ = record(tmp_path / "run", clients={"handover": "weights"})
    pool = made.parts.pool
    enter_round(made, 1)
    made.parts.exchange.step(0)
    packet = pool.ask(0, HandOver(1))
    zeros = tuple(torch.zeros_like(t) for t in packet.tensors)
    pool.ask(1, Receive(replace(packet, tensors=zeros)))
    assert (pool.ask(1, Begin(1))[0].tensors[0] == 0).all()


@pytest.mark.parametrize("handover", ["state", "weights"])
def test_who_is_evaluated_or_attacked_holds_what_was_trained_last(
    handover: str, tmp_path: Path
) -> None:
    """Client 0 lives where nobody trained, as on another host; 2 trained last."""
    changes = {"clients": {"handover": handover}}
    made, _ = record(tmp_path / "here", **changes)
    elsewhere, _ = record(tmp_path / "elsewhere", **changes)
    exchange, wire = made.parts.exchange, made.parts.wire
    here = made.parts.pool.clients
    exchange.pool = InlinePool({0: elsewhere.parts.pool.clients[0], 1: here[1], 2: here[2]})
    enter_round(made, 1)
    exchange.hand_over(2)
    exchange.step(2)

    def weights(client: int) -> list[Tensor]:
        state = exchange.pool.ask(client, SharedState())
        return [tensor for name, tensor in state.items() if "optimizer" not in name]

    def are_equal() -> bool:
        return all(map(torch.equal, weights(0), weights(2)))

    sent = wire.take()
    assert not are_equal()
    exchange.settle([0, 2])
    assert are_equal()
    assert exchange.holder == 2
    assert sent
    assert not wire.take()
