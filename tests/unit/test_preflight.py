"""What a run will take, by hand; and what cannot fit is refused before it is built."""

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import scenario
from texts import CAUSAL, LORA, text_scenario
from torch import nn

from simsplit import preflight
from simsplit.assembly import Assembler, memory
from simsplit.data import DataInfo, Prepared, Samples, prepare
from simsplit.errors import ScenarioError
from simsplit.machine import read_free_bytes
from simsplit.models.recomputing import watch_units
from simsplit.preflight import (
    Estimate,
    KeptTensors,
    count_learned_bytes,
    count_trained_bytes,
    refuse_if_too_large,
)
from simsplit.sizes import format_size

CPU = torch.device("cpu")
HEAD = 1 * 20 * 25 + 20 + 20 * 20 * 9 + 2 * 20  # SimpleCNN's two convolutions and batch norm
TAIL = 512 * 10 + 10
BUFFERS = 4 * 2 * 20 + 8  # running mean and variance, and the count of batches

STEP = "activations of a step"


def estimate(count: int, hosts: int = 0, **changes: Any) -> Estimate:
    clients = {"count": count} | changes.pop("clients", {})
    given = scenario(clients=clients, model={"cut": "l2h"}, **changes)
    data = prepare(given.data, count, given.seed)
    return memory.estimate_memory(Assembler(given, data, CPU).owners, data, hosts)


def test_trained_bytes_of_a_linear_layer() -> None:
    layer = nn.Linear(3, 2)  # eight values
    assert count_trained_bytes([layer], slots=0) == 8 * 4 * 2
    assert count_trained_bytes([layer], slots=1) == 8 * 4 * 3
    assert (
        count_trained_bytes([layer, nn.BatchNorm1d(2)], slots=1) == 96 + 4 * 4 * 3 + 2 * 2 * 4 + 8
    )


def test_frozen_weights_have_neither_gradients_nor_slots() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    assert count_trained_bytes([layer], slots=2) == 4 * (6 + 2 * 4)
    assert count_learned_bytes([layer]) == 4 * 2


def count_kept(run: Callable[[], Any]) -> int:
    kept = KeptTensors()
    with kept.watch({"": nn.Module()}):
        run()
    return kept.count([""])


def test_activations_are_counted_once_per_storage() -> None:
    x = torch.ones(10, requires_grad=True)
    assert count_kept(lambda: x.exp()) == 40  # exp keeps its result
    assert count_kept(lambda: x * x) == 40  # both factors are the same tensor
    steps = 4  # each result has a place of its own while the graph would keep it
    assert count_kept(lambda: reduce(lambda y, _: y.exp(), range(steps), x)) == 40 * steps


def test_activations_measured_are_let_go() -> None:
    x = torch.ones(10, requires_grad=True)
    gone = weakref.ref(x)
    count_kept(x.exp)
    del x
    gc.collect(1)  # the young objects alone: there are a million of the others
    assert gone() is None


@pytest.mark.parametrize(("slots", "kind"), [(1, "sgd"), (2, "adam")])
def test_a_client_of_its_own_costs_its_own_parts(slots: int, kind: str) -> None:
    optimizer = {"kind": "sgd", "momentum": 0.9} if kind == "sgd" else {"kind": "adam"}
    changes: dict[str, Any] = {"clients": {"heads": "per_client"}, "train": {"client": optimizer}}
    more = estimate(4, **changes).total - estimate(3, **changes).total
    assert more == (HEAD + TAIL) * 4 * (2 + slots) + BUFFERS


def test_a_client_that_shares_its_head_costs_nothing() -> None:
    assert estimate(4).parts == estimate(3).parts


def test_a_client_that_shares_the_tail_costs_its_head() -> None:
    clients = {"clients": {"heads": "per_client", "tail": "shared"}}
    assert estimate(4, **clients).total - estimate(3, **clients).total == HEAD * 12 + BUFFERS


def test_moments_that_stay_at_home_are_each_clients_own() -> None:
    clients = {"clients": {"handover": "weights"}}
    assert estimate(4, **clients).total - estimate(3, **clients).total == (HEAD + TAIL) * 4
    plain = clients | {"train": {"client": {"kind": "sgd", "lr": 0.1}}}
    assert estimate(4, **plain).parts == estimate(3, **plain).parts


def test_hosts_hold_copies() -> None:
    """In this process and on each of two hosts; images in shared memory, clients on one host."""
    changes: dict[str, Any] = {"aggregation": "splitfed_v1"}
    alone, hosted = estimate(3, **changes).parts, estimate(3, hosts=2, **changes).parts
    times = {name: hosted[name] / nbytes for name, nbytes in alone.items()}
    assert times == {
        "clients' own parts": 1,
        "shared head and tail": 3,
        "server": 3,
        "trunk copies": 1,
        STEP: 2,
        "samples": 2,
        "Python and torch": 3,
    }
    own: dict[str, Any] = {"clients": {"heads": "per_client"}}
    assert estimate(3, hosts=2, **own).parts["server"] == estimate(3, **own).parts["server"]


def test_a_hundred_thousand_resnets_are_refused_at_once() -> None:
    count = 100_000
    given = scenario(
        data={"source": {"kind": "folder", "path": "none", "size": 32}},
        clients={"count": count, "heads": "per_client"},
        model={"kind": "resnet18"},
        train={"client": {"kind": "adam"}},
    )
    few = Samples(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    rows = [np.arange(4)] * count
    info = DataInfo((3, 32, 32), 10)
    data = Prepared("few", info, few, None, None, few, rows, (0.5,) * 3, (0.5,) * 3)
    started = time.perf_counter()
    needed = memory.estimate_memory(Assembler(given, data, CPU).owners, data)
    # the stem and one block, and the last layer: about 1.3 MB of weights, gradients and moments
    stem, block, tail = 3 * 64 * 49 + 2 * 64, 2 * (64 * 64 * 9 + 2 * 64), 512 * 10 + 10
    buffers = 3 * (2 * 64 * 4 + 8)
    each = (stem + block + tail) * 4 * 4 + buffers
    assert needed.parts["clients' own parts"] == count * each
    if needed.total <= read_free_bytes(CPU):
        needed = Estimate(
            {"clients' own parts": 100 * read_free_bytes(CPU)}
        )  # a machine of that size
    with pytest.raises(ScenarioError) as caught:
        refuse_if_too_large(needed, CPU)
    assert time.perf_counter() - started < 10
    reason = caught.value.reason
    assert caught.value.field == ""
    assert f"{format_size(needed.total)} (clients' own parts " in reason
    assert "heads: shared" in reason


def test_an_estimate_copies_no_frozen_weight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = {**CAUSAL, "learns": ["head", "tail"], "lora": LORA}
    seen: list[nn.Module] = []

    def watch(network: nn.Module) -> AbstractContextManager[list[Callable[[], Any]]]:
        seen.append(network)
        return watch_units(network)

    monkeypatch.setattr(preflight, "watch_units", watch)
    steps = []
    for form in (None, "nf4"):
        given = text_scenario(tmp_path / str(form), model={**model, "quantise": form})
        data = given.prepare_data()
        owners = Assembler(given, data, CPU).owners
        steps.append(memory.estimate_memory(owners, data).parts[STEP])
        own = {weight.data_ptr() for weight in owners.model.trunk.parameters()}
        passed = [weight for each in seen[-3:] for weight in each.parameters()]
        copied = [weight.data_ptr() for weight in passed if not weight.requires_grad]
        assert own <= {*copied}
    width, inner = 16, 3 * 16
    assert steps[1] - steps[0] == width * inner * (4 + 4 + 2)


def test_a_step_takes_no_more_than_a_client_has() -> None:
    """However large a batch may be, it has at most the samples of the largest client."""
    taken = [
        estimate(3, data={"train_samples": 90}, train={"batch_size": size})
        for size in (1000000, 200, 1)
    ]
    steps = [each.parts[STEP] for each in taken]
    assert steps[0] == steps[1] > steps[2] > 0


def test_what_fits_is_let_through() -> None:
    refuse_if_too_large(Estimate({"little": 1}), CPU)
    assert read_free_bytes(CPU) > 2**20


@pytest.mark.parametrize(
    ("nbytes", "gist"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**20, "3.0 MiB"), (2**31, "2.00 GiB")],
)
def test_sizes_as_people_read_them(nbytes: int, gist: str) -> None:
    assert format_size(nbytes) == gist


def test_an_estimate_names_the_largest_part_first() -> None:
    assert str(Estimate({"a": 1024, "none": 0, "b": 2048})) == "3.0 KiB (b 2.0 KiB, a 1.0 KiB)"
