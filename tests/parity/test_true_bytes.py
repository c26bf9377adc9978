"""What is not learned does not travel, is not averaged and is not kept: to the byte."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, enter_round, experiment, run_to_end
from by_hand import Recorder
from comparing import assert_equal, weights
from hosted import on_hosts
from pace import quick
from texts import text_scenario
from torch import Tensor

from simsplit.assembly.assembler import fingerprint
from simsplit.assembly.state import collect_state
from simsplit.engine.ray_pool import Hosts
from simsplit.errors import RunError
from simsplit.experiment import Experiment
from simsplit.legs import Leg
from simsplit.results import Run, checkpoints
from simsplit.scenario import Scenario

WIDTH, INSIDE, RANK = 16, 48, 2
# of every layer q, k, v and o, width to width; gate and up, width to inside; down, back
LAYER = RANK * (4 * (WIDTH + WIDTH) + 3 * (WIDTH + INSIDE))
PAIRS = 7 * 2  # of matrices
LM: dict[str, Any] = {"kind": "causal_lm", "sizes": {"width": WIDTH}, "head": 1, "tail": 1}
LORA = {**LM, "lora": {"rank": RANK}}
MOMENTUM = {"kind": "sgd", "lr": 0.01, "momentum": 0.9}
PARALLEL = {"kind": "parallel", "rounds": 2}
OWN = {"heads": "per_client", "start": "own"}


def only(*segments: str) -> dict[str, Any]:
    return {**LM, "learns": segments}


def small(path: Path, model: dict[str, Any] = LORA, **changes: Any) -> Scenario:
    common = {"data": {"train_samples": 24, "test_samples": 4}, "model": model}
    return text_scenario(path, **common, **changes)


def count_crossed(path: Path, given: Scenario, *legs: Leg) -> list[int]:
    """Count the bytes of each packet on these legs, evaluation's included."""
    made, tap = experiment(given, path), Recorder()
    made.parts.wire.taps.append(tap)
    made.run(resume=False)
    return [packet.nbytes for leg in legs for packet in tap.on(leg)]


HANDED: dict[str, tuple[dict[str, Any], int]] = {
    "weights": ({"clients": {"handover": "weights"}}, 4 * 2 * LAYER),
    "and a momentum": ({"train": {"client": MOMENTUM}}, 4 * 2 * LAYER * 2),
    # who counts steps for each weight
    "and Adam's moments": ({}, 4 * 2 * LAYER * 3 + 4 * 2 * PAIRS),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(HANDED, "and Adam's moments"))
def test_a_hand_over_is_the_adapters_of_head_and_tail(case: str, tmp_path: Path) -> None:
    changes, nbytes = HANDED[case]
    given = small(tmp_path, **changes)
    assert set(count_crossed(tmp_path / "run", given, Leg.HANDOVER)) == {nbytes}


FROZEN: list[dict[str, Any]] = [
    {},
    {"clients": {"handover": "weights"}},
    {"clients": {"heads": "per_client", "tail": "shared"}},
    {"aggregation": "splitfed_v2", "schedule": PARALLEL},
    {"aggregation": "splitfed_v1", "schedule": PARALLEL},
    {"topology": "vanilla"},
]


@pytest.mark.parametrize("changes", quick(FROZEN, FROZEN[-2]))
def test_of_frozen_segments_no_packet_is_sent(changes: dict[str, Any], tmp_path: Path) -> None:
    given = small(tmp_path, only("trunk"), **changes)
    assert count_crossed(tmp_path / "run", given, Leg.HANDOVER, Leg.BROADCAST) == []
    assert {"handover", "broadcast"}.isdisjoint(Run.load(tmp_path / "run").wire["leg"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["splitfed_v1", "splitfed_v2"], "splitfed_v2"))
def test_averages_are_of_adapters(kind: str, tmp_path: Path) -> None:
    given = small(tmp_path, aggregation=kind, schedule=PARALLEL)
    sent = count_crossed(tmp_path / "run", given, Leg.HANDOVER, Leg.BROADCAST)
    assert sent == [4 * 2 * LAYER] * 8  # two rounds of two clients, down and up


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layers"), [(LORA, 4), (only("head", "tail"), 0)])
def test_a_trunk_copy_comes_back_as_its_adapters(
    model: dict[str, Any], layers: int, tmp_path: Path
) -> None:
    given = small(tmp_path, model, aggregation="splitfed_v1", schedule=PARALLEL)
    made = experiment(given, tmp_path / "run")
    pool, sent = made.parts.pool, []
    train_rounds = pool.train_rounds

    def watch(jobs: Any, trunk: dict[str, Tensor]) -> Iterator[Any]:
        sent.append(trunk)
        for client, outcome in train_rounds(jobs, trunk):
            sent.append(outcome.trunk)
            yield client, outcome

    pool.train_rounds = watch
    made.run(resume=False)
    sizes = {sum(tensor.nbytes for tensor in tensors.values()) for tensors in sent}
    assert len(sent) == 2 * 3
    assert sizes == {4 * layers * LAYER}


def data_bytes(path: Path) -> int:
    """Count the bytes behind safetensors' header in the newest checkpoint's file."""
    blob = (sorted((path / "checkpoints").iterdir())[-1] / "state.safetensors").read_bytes()
    header = int.from_bytes(blob[:8], "little")
    assert json.loads(blob[8 : 8 + header])
    return len(blob) - 8 - header


FINGERPRINT, TAKEN = 16, 8


@pytest.mark.slow
def test_a_checkpoint_is_as_large_as_what_learns(tmp_path: Path) -> None:
    run_to_end(small(tmp_path), tmp_path / "run")
    adam = 4 * (4 + 2) * LAYER * 3 + 4 * (4 + 2) * PAIRS  # of trunk, head and tail
    assert data_bytes(tmp_path / "run") == adam + 2 * TAKEN + FINGERPRINT


def test_heads_of_ones_own_that_never_learn_are_in_no_checkpoint(tmp_path: Path) -> None:
    run_to_end(small(tmp_path, only("trunk"), clients=OWN), tmp_path / "run")
    kept = weights(tmp_path / "run")
    assert {name for name in kept if name.startswith("client/")} == {
        "client/0/taken.private",
        "client/1/taken.private",
    }


# resumed, by what is built and what is kept


def copy_weights(run: Experiment) -> dict[str, Tensor]:
    """Copy all present weights, whether they learn or not."""
    clients = run.parts.pool.clients
    held = {"trunk": run.parts.server.end.trunk}
    held |= {f"{n}.head": client.training.end.head for n, client in clients.items()}
    tails = {n: client.training.end.tail for n, client in clients.items()}
    held |= {f"{n}.tail": tail for n, tail in tails.items() if tail is not None}
    return {
        f"{name}.{key}": tensor
        for name, module in held.items()
        for key, tensor in module.state_dict().items()
    }


CASES: dict[str, dict[str, Any]] = {
    "adapters": {},
    "adapters, moments at home": {"clients": {"handover": "weights"}},
    "adapters, own heads": {"clients": OWN},
    "trunk alone, own heads": {"model": only("trunk"), "clients": OWN},
    "head alone": {"model": only("head")},
    "adapters, splitfed_v1": {"aggregation": "splitfed_v1", "schedule": PARALLEL | {"rounds": 3}},
    "adapters, fedadam": {
        "aggregation": {"kind": "splitfed_v2", "strategy": "fedadam"},
        "schedule": PARALLEL | {"rounds": 3},
    },
    "trunk alone, splitfed_v1": {
        "model": only("trunk"),
        "aggregation": "splitfed_v1",
        "schedule": PARALLEL | {"rounds": 3},
    },
    "adapters, turns undone": {
        "clients": {"count": 4},
        "schedule": {"kind": "per_client", "rounds": 3},
        "detectors": [{"kind": "safesplit"}],
    },
}
APART = ("adapters, splitfed_v1", "trunk alone, splitfed_v1")
QUICK = ("adapters, own heads",)


def of_case(case: str, path: Path) -> Scenario:
    return small(path, **({"schedule": {"rounds": 3}} | CASES[case]))


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, *QUICK))
def test_resumed_is_as_never_stopped(case: str, tmp_path: Path) -> None:
    given = of_case(case, tmp_path)
    whole = run_to_end(given, tmp_path / "whole")
    steps = int(Run.load(tmp_path / "whole").rounds["steps"].sum())
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "again", [StopAt(steps // 2)]).run(resume=False)
    again = experiment(given, tmp_path / "again")
    again.run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")
    ours, theirs = copy_weights(whole), copy_weights(again)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def as_earlier_versions_kept_it(given: Scenario, path: Path) -> dict[str, Tensor]:
    """Rewrite the newest checkpoint with all weights in it, and no fingerprint."""
    digest = checkpoints.compute_digest(given.identity())
    tensors, progress, _ = checkpoints.load(path / "checkpoints", digest)
    made = experiment(given, path)
    del tensors["frozen"]
    before = dict(tensors)
    client = made.parts.pool.clients[progress.holder or 0]
    held = [("server/", made.parts.server.learner), ("holder/", client.sharing.parts.shared)]
    for prefix, learner in held:
        for name, tensor in learner._list_tensors().items():
            tensors.setdefault(prefix + name, tensor)
    for client in tensors.get("detection/turns/order", torch.empty(0)).tolist():
        for name, tensor in made.parts.server.learner._list_tensors().items():
            for part in ("before", "after"):
                kept = f"detection/turns/{client}/{part}/{name}"
                tensors.setdefault(kept, tensor.detach().clone())
    checkpoints.save(path / "checkpoints", tensors, progress, digest, keep=1)
    return {name: tensors[name] for name in tensors.keys() - before.keys()}


@pytest.mark.ray
@pytest.mark.parametrize(
    "case", ["adapters", "adapters, moments at home", "trunk alone, own heads", *APART]
)
def test_hosts_take_what_travels_and_have_built_the_rest(
    case: str, tmp_path: Path, hosts: Hosts
) -> None:
    given = of_case(case, tmp_path)
    run_to_end(given, tmp_path / "inline")
    on_hosts(given, tmp_path / "hosts", hosts).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


EARLIER = ("adapters", "head alone", "adapters, turns undone")


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(EARLIER, "head alone"))
def test_a_checkpoint_of_an_earlier_version_is_taken_up(case: str, tmp_path: Path) -> None:
    given = of_case(case, tmp_path)
    whole = run_to_end(given, tmp_path / "whole")
    steps = int(Run.load(tmp_path / "whole").rounds["steps"].sum())
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "again", [StopAt(steps // 2)]).run(resume=False)
    more = as_earlier_versions_kept_it(given, tmp_path / "again")
    assert sum(tensor.numel() for tensor in more.values()) > 10_000
    again = experiment(given, tmp_path / "again")
    with torch.no_grad():  # it is the checkpoint that counts, not what a model is built with now
        for weight in again.parts.server.end.trunk.parameters():
            if not weight.requires_grad:
                weight.zero_()
    again.run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")
    ours, theirs = copy_weights(whole), copy_weights(again)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.slow
def test_another_model_under_the_same_name_is_refused(tmp_path: Path) -> None:
    given = small(tmp_path)
    run_to_end(given, tmp_path / "run")
    longer = small(tmp_path, schedule={"rounds": 3})
    made = experiment(longer, tmp_path / "run")
    assert made.parts.frozen is not None
    made.parts.frozen = made.parts.frozen.flip(0)
    with pytest.raises(RunError, match="frozen"):
        made.run(resume=True)


def test_the_fingerprint_is_of_frozen_weights_alone() -> None:
    layer = torch.nn.Linear(2, 2)
    assert fingerprint([layer]) is None
    layer.weight.requires_grad_(False)
    first = fingerprint([layer])
    with torch.no_grad():
        layer.bias.add_(1)
    assert torch.equal(fingerprint([layer]), first)
    with torch.no_grad():
        layer.weight[1, 1] += 1
    assert not torch.equal(fingerprint([layer]), first)


def test_what_learns_in_some_phase_is_kept_in_the_others(tmp_path: Path) -> None:
    """While only a method learns, head, trunk and tail are as much of the state as ever."""
    method = [{"kind": "snd", "heads": 2, "layers": 1, "warm_up": 1}]
    data = {"auxiliary": 0.3, "train_samples": 24, "test_samples": 4}
    given = text_scenario(tmp_path, data=data, model=LORA, method=method)
    made = experiment(given, tmp_path / "run")
    before = collect_state(made.parts).keys()
    enter_round(made, 1)
    assert made.live.program.choose_lineup(1).phase.name == "denoise"
    assert collect_state(made.parts).keys() == before
    assert any("lora" in name for name in before if name.startswith("holder/"))
