"""Clients that train as one tensor train as they do one after another, but for rounding."""

import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from builders import StopAt, scenario
from comparing import assert_equal as assert_runs_equal
from comparing import weights
from gists import says
from pace import quick
from plain_loops import train
from texts import CAUSAL, LORA, text_scenario

from simsplit.assembly import Assembler
from simsplit.errors import ScenarioError
from simsplit.evidence.digests import digest_of, dump_fields
from simsplit.experiment import Experiment
from simsplit.packets import Packet
from simsplit.parties.calls import OwnState, SharedState
from simsplit.parties.seats import Roster
from simsplit.parties.stacked_end import StackedEnd
from simsplit.phases import TRAIN, Phase
from simsplit.running import stack_choice
from simsplit.scenario.files import merge
from simsplit.scenario.loading import differences
from simsplit.scenario.refusals import list_warnings
from simsplit.schedules.cohort import Lineup
from simsplit.wire import Wire

SIZES = (21, 13, 6, 24)
"""Samples of four clients, in batches of 8: the last batches of a pass have different sizes."""
ADAM = {"kind": "adam", "lr": 2e-3}
OWN: dict[str, Any] = {"heads": "per_client"}
AVERAGED = {"heads": "shared"}
MLP = {"kind": "mlp", "widths": [16, 12, 8]}
MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
CALM = MOMENTUM | {"lr": 0.01}
BASE: dict[str, Any] = {
    "aggregation": "fused",
    "schedule": {"kind": "parallel", "rounds": 7},
    "clients": OWN,
    "model": MLP,
}
CASES: dict[str, dict[str, Any]] = {
    "momentum, dampened and decayed": {
        "train": {"client": MOMENTUM | {"dampening": 0.5, "weight_decay": 0.1}}
    },
    "nesterov, norms with statistics": {
        "train": {"client": MOMENTUM | {"nesterov": True}},
        "model": {"kind": "simplecnn"},
    },
    "adam, clipped": {
        "train": {"client": {"kind": "adam", "lr": 2e-3, "weight_decay": 0.1}, "clip_norm": 0.1}
    },
    "adamw and amsgrad, vanilla, augmented": {
        "topology": "vanilla",
        # A bias before a norm has a gradient of rounding alone, which a small eps would amplify.
        "train": {"client": {"kind": "adamw", "lr": 5e-4, "amsgrad": True, "eps": 1e-4}},
        "data": {"augment": ["flip"]},
        "model": {"kind": "simplecnn"},
    },
    "averaged heads, FedProx": {
        "clients": AVERAGED,
        "aggregation": {"kind": "fused", "proximal": 0.5},
        "train": {"client": MOMENTUM},
    },
    "attention": {"model": {"kind": "vit", "width": 16, "heads": 2, "layers": 3}},
    "heads that do not learn": {"model": MLP | {"learns": ["trunk", "tail"]}},
    "stacks of two": {"engine": {"stack": 2}, "train": {"client": MOMENTUM}},
    "an equal number of steps, and a smoothed loss": {
        "schedule": {"local_steps": 3},
        "train": {"label_smoothing": 0.2, "lr_schedule": {"kind": "cosine"}},
    },
    "dropouts of clients": {
        "cohort": {"fraction": 0.8, "dropout": 0.5},
        "train": {"client": {"kind": "adam", "lr": 2e-3}},
    },
    "a malicious client beside the stack": {
        "clients": OWN
        | {"malicious": {"fraction": 0.25, "poison": [{"kind": "badnets", "target": 0}]}},
        "detectors": [{"kind": "cosine_mad"}],
    },
    "lightsplit, with a lift, on both legs": {
        "method": [{"kind": "lightsplit", "ratio": 4, "legs": ["smashed", "features"]}]
    },
    "noise, whose draws are each client's own": {"method": [{"kind": "noise", "sigma": 0.1}]},
    "quantised": {"method": [{"kind": "quantise", "bits": 4}]},
    "cast": {"method": [{"kind": "cast"}]},
    "a term of the loss before the cut": {"method": [{"kind": "wcc", "weight": 0.1}]},
    "the largest values": {"method": [{"kind": "topk", "ratio": 4}]},
    "gradients in several messages": {
        "method": [{"kind": "private_backprop"}],
        "model": MLP | {"learns": ["head", "tail"]},
    },
}
COPIES: dict[str, Any] = {"aggregation": "splitfed_v1", "clients": AVERAGED}
"""Each client trains against a trunk of its own, averaged at the end of a round."""
SPLITFED = {
    "copies, momentum kept, dropouts": COPIES
    | {"train": {"client": MOMENTUM, "server": MOMENTUM}, "cohort": {"dropout": 0.3}},
    "copies, vanilla, with norms": {
        "aggregation": "splitfed_v1",
        "topology": "vanilla",
        "model": {"kind": "simplecnn"},
        "train": {"client": ADAM, "server": MOMENTUM | {"nesterov": True}},
    },
    "copies, FedProx, moments reset, clipped": {
        "aggregation": {"kind": "splitfed_v1", "moments": "reset", "proximal": 0.5},
        "clients": AVERAGED,
        "train": {"client": ADAM, "server": {"kind": "adamw", "lr": 1e-3}, "clip_norm": 0.1},
        "cohort": {"fraction": 0.8},
    },
    "copies, stacks of two, lightsplit on both legs, a malicious client": {
        "aggregation": "splitfed_v1",
        "engine": {"stack": 2},
        "clients": OWN
        | {"malicious": {"fraction": 0.25, "poison": [{"kind": "badnets", "target": 0}]}},
        "detectors": [{"kind": "cosine_mad"}],
        "method": [
            {"kind": "lightsplit", "ratio": 4, "legs": ["smashed", "features"], "lift": "fixed"}
        ],
    },
    "copies, noise and quantised": COPIES
    | {
        "method": [{"kind": "noise", "sigma": 0.1}, {"kind": "quantise", "bits": 8}],
    },
}
CASES |= SPLITFED
ADAPTED: dict[str, Any] = {
    "aggregation": "splitfed_v1",
    "clients": {"count": 4, **OWN},
    "schedule": {"kind": "parallel", "rounds": 5},
}
"""Clients with own adapters on one frozen transformer, whose texts have several lengths."""
TEXTS: dict[str, dict[str, Any]] = {
    "adapters": {"model": CAUSAL | {"lora": LORA}},
    "a classifier, vanilla, momentum kept, dropouts": {
        "topology": "vanilla",
        "model": {"sizes": {"family": "qwen3"}, "lora": LORA, "quantise": "int8"},
        "train": {"client": CALM, "server": CALM, "batch_size": 4},
        "cohort": {"fraction": 0.8, "dropout": 0.3},
    },
    "averaged adapters, a frozen trunk, noise": {
        "clients": AVERAGED,
        "model": CAUSAL | {"lora": LORA, "learns": ["head", "tail"]},
        "method": [{"kind": "noise", "sigma": 0.1}],
        "engine": {"stack": 2},
    },
    "adapters of some layers, clipped, FedProx": {
        "aggregation": {"kind": "splitfed_v1", "proximal": 0.5},
        "clients": AVERAGED,
        "model": {
            "sizes": {"family": "gpt2", "width": 16},
            "lora": LORA | {"targets": ["c_attn"]},
        },
        "train": {"clip_norm": 0.1},
    },
}


class Order:
    """A tap that notes the order of packets."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def observe(self, packet: Packet) -> None:
        forms = tuple((tuple(t.shape), t.dtype) for t in packet.tensors)
        self.seen.append((packet.round, packet.client, packet.leg, packet.step, forms))


@pytest.fixture
def stacked_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients of each step that was taken as one."""
    taken: list[int] = []
    begin = StackedEnd.begin

    def count(self: StackedEnd, numbers: Any, round_number: int) -> Any:
        taken.append(len(numbers))
        return begin(self, numbers, round_number)

    monkeypatch.setattr(StackedEnd, "begin", count)
    return taken


def run_images(path: Path, **changes: Any) -> Experiment:
    """Run a scenario on digits to its end."""
    changed = BASE | changes
    changed["schedule"] = BASE["schedule"] | changes.get("schedule", {})
    return train(path, SIZES, **changed)


def run_texts(path: Path, **changes: Any) -> Experiment:
    """Run a scenario on reviews to its end."""
    run = Experiment(text_scenario(path, **merge(ADAPTED, changes)), path)
    run.run(resume=False)
    return run


def run_both(
    path: Path,
    order: pytest.MonkeyPatch,
    run_to_end: Callable[..., Experiment] = run_images,
    **changes: Any,
) -> list[Experiment]:
    """Run a scenario with clients one after another, and stacked."""
    asked = changes.pop("engine", {"stack": 100})
    runs = []
    for name, engine in (("loop", {"stack": "off"}), ("stack", asked)):
        tap, init = Order(), Wire.__init__

        def with_tap(self: Wire, taps: Any = (), tap: Order = tap, init: Any = init) -> None:
            init(self, [*taps, tap])

        with order.context() as patched:
            patched.setattr(Wire, "__init__", with_tap)
            run = run_to_end(path / name, **changes, engine={"kind": "inline", **engine})
        run.order = tap.seen  # type: ignore[attr-defined]
        runs.append(run)
    return runs


def states(run: Experiment) -> dict[str, torch.Tensor]:
    """Return what all clients remember, and the trunk."""
    pool, made = run.parts.pool, dict(run.parts.server.learner.weights())
    # Of copies the server's own moments are those of the one that it trained last.
    kept = pool.workshop_state() or run.parts.server.learner.moments()
    made |= {f"server/{name}": tensor for name, tensor in kept.items()}
    for client in run.clients:
        for call in (OwnState(), SharedState()):
            made |= {f"{client}/{name}": t for name, t in pool.ask(client, call).items()}
    return made


@pytest.mark.parametrize("case", quick(CASES, *list(CASES)[:6], "dropouts of clients", "quantised"))
def test_stacked_clients_train_as_one_after_another(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked_steps: list[int]
) -> None:
    runs = run_both(tmp_path, monkeypatch, **CASES[case])
    assert max(stacked_steps) > 1
    # A momentum of attention is a sum of parts that nearly cancel out.
    atol = 1e-4 if case == "attention" else 2e-5
    assert_equal_but_for_rounding(*runs, by_client=case in SPLITFED, atol=atol)


@pytest.mark.parametrize("case", quick(TEXTS, *list(TEXTS)[:2]))
def test_adapters_of_stacked_clients_train_as_one_after_another(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked_steps: list[int]
) -> None:
    runs = run_both(tmp_path, monkeypatch, run_texts, **TEXTS[case])
    assert max(stacked_steps) > 1
    assert len({seen[-1][0][0][1] for seen in runs[0].order}) > 1, "texts have several lengths"  # type: ignore[attr-defined]
    assert_equal_but_for_rounding(*runs, by_client=True)


def assert_equal_but_for_rounding(
    loop: Experiment, stack: Experiment, *, by_client: bool, atol: float = 2e-5
) -> None:
    """Assert equal packets, bytes and counts, and weights, moments and losses up to rounding."""
    # Copies are trained client by client, stacked ones lap by lap: each one's packets are in order.
    orders = [stack.order, loop.order]  # type: ignore[attr-defined]
    ours, theirs = (sorted(o, key=itemgetter(0, 1)) if by_client else o for o in orders)
    assert ours == theirs
    wires = [pd.read_csv(run.path / "wire.csv") for run in (loop, stack)]
    pd.testing.assert_frame_equal(*wires)
    tables = [pd.read_csv(run.path / "clients.csv") for run in (loop, stack)]
    assert tables[0]["steps"].sum() > 20
    pd.testing.assert_frame_equal(*tables, rtol=1e-5, atol=1e-5)
    for count in ("steps", "samples", "plain_bytes", "train_accuracy"):
        if count in tables[0]:
            assert tables[0][count].equals(tables[1][count]), count
    kept, wanted = states(stack), states(loop)
    assert kept.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            kept[name], tensor, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def many(stack: str | int, **changes: Any) -> Any:
    """Return a scenario of 8 clients, of whom some take part in a round and some drop out."""
    return scenario(
        **{
            **BASE,
            "schedule": {"kind": "parallel", "rounds": 4},
            "clients": {**OWN, "count": 8},
            "cohort": {"fraction": 0.6, "dropout": 0.2},
            "train": {"batch_size": 4, "client": ADAM},
            "engine": {"kind": "inline", "stack": stack, **changes.pop("engine", {})},
            **changes,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["fused", "splitfed_v1"])
def test_resumed_as_if_never_stopped(
    aggregation: str, tmp_path: Path, stacked_steps: list[int]
) -> None:
    given = many(100, aggregation=aggregation)
    Experiment(given, tmp_path / "whole").run(resume=False)
    for after in (9, 14, 1000):
        try:
            Experiment(given, tmp_path / "broken", [StopAt(after)]).run(resume=True)
        except KeyboardInterrupt:
            continue
    assert max(stacked_steps) > 2
    assert_runs_equal(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["memory", "disk"])
def test_clients_that_rest_are_stacked_with_the_same_bits(
    rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked_steps: list[int]
) -> None:
    Experiment(many(100), tmp_path / "live").run(resume=False)
    monkeypatch.setattr(Assembler, "seats", 2)
    resting = Experiment(many(100, engine={"rest": rest}), tmp_path / "rest")
    resting.run(resume=False)
    assert isinstance(resting.parts.pool.clients, Roster)
    assert max(stacked_steps) > 2
    for table in ("rounds", "clients", "wire"):
        live, rested = ((tmp_path / n / f"{table}.csv").read_text() for n in ("live", "rest"))
        assert live == rested, table
    if rest == "memory":
        ours, theirs = weights(tmp_path / "live"), weights(tmp_path / "rest")
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"engine": {"stack": 1}}, "engine.stack: ... auto ... off ... got 1"),
    "a word": ({"engine": {"stack": "yes"}}, "engine.stack: ... auto ... off ... got 'yes'"),
    "in turn": (
        {"aggregation": "none"},
        "engine.stack: got 3 ... aggregation.kind none",
    ),
    "averaged in turn": (
        {"aggregation": "splitfed_v2", "clients": {"heads": "shared"}},
        "engine.stack: got 3 ... aggregation.kind splitfed_v2 ... use off",
    ),
    "copies of cuts that differ": (
        {
            "aggregation": "splitfed_v1",
            "clients": {"heads": "shared", "count": 2, "cut": [1, 2]},
            "model": {"kind": "mlp", "widths": [16, 12, 8], "tail": 1},
        },
        "engine.stack: got 3 ... cuts differ; use off",
    ),
    "a lift that learns, of a trunk each": (
        {
            "aggregation": "splitfed_v1",
            "method": [{"kind": "lightsplit", "ratio": 4, "lift": "learned"}],
        },
        "engine.stack: got 3 ... LightSplit ... use off",
    ),
    "narrow": (
        {"train": {"precision": "bf16"}},
        "engine.stack: got 3 ... train.precision bf16",
    ),
    "computed again": (
        {"train": {"checkpointing": True}},
        "engine.stack: got 3 ... train.checkpointing ... use off",
    ),
    "lookahead": (
        {"train": {"client": {"kind": "sgd", "lookahead": {}}}},
        "engine.stack: got 3 ... train.client.lookahead ... use off",
    ),
    "dropout": ({"model": MLP | {"dropout": 0.5}}, "engine.stack: got 3 ... dropout ... use off"),
    "a method that learns": (
        {"method": [{"kind": "shredder"}]},
        "engine.stack: got 3 ... Shredder learns ... use off",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stacked_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    changes, wanted = REFUSED[case]
    with pytest.raises(ScenarioError) as caught:
        Experiment(many(3, **changes), tmp_path)
    assert says(str(caught.value), wanted)


REFUSED_TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "padded on the left": ({"data": {"source": {"padding": "left"}}}, "masks ... use off"),
    "read both ways": ({"model": {"sizes": {"family": "bert"}}}, "masks ... use off"),
    "all weights": ({"model": {"lora": None}}, "model.lora ... use off"),
    "narrow": ({"model": {"dtype": "bfloat16"}}, "model.dtype bfloat16 ... float32 ... use off"),
    "experts": ({"model": {"sizes": {"family": "qwen3_moe"}}}, "experts ... use off"),
    "dropout": ({"model": {"lora": LORA | {"dropout": 0.1}}}, "dropout ... use off"),
}


@pytest.mark.parametrize("case", REFUSED_TEXTS)
def test_texts_that_cannot_be_stacked_are_refused_with_the_reason(
    case: str, tmp_path: Path
) -> None:
    changes, wanted = REFUSED_TEXTS[case]
    given = merge(ADAPTED, {"model": {"lora": LORA}, "engine": {"kind": "inline", "stack": 3}})
    with pytest.raises(ScenarioError) as caught:
        Experiment(text_scenario(tmp_path, **merge(given, changes)), tmp_path)
    assert says(str(caught.value), f"engine.stack: got 3 ... {wanted}")


@pytest.mark.parametrize("aggregation", quick(["fused", "splitfed_v1"], "fused"))
def test_auto_measures_and_keeps_its_choice(
    aggregation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stacked_steps: list[int],
) -> None:
    few: dict[str, Any] = {"aggregation": aggregation} | {
        "schedule": {"kind": "parallel", "rounds": 2},
        "evaluate": {"every": 0},
    }
    monkeypatch.setattr(stack_choice, "compare_ways", lambda times: min(times[0]) > 0 and 0.5)
    slow = Experiment(many("auto", **few), tmp_path)
    slow.run(resume=False)
    kept = json.loads((tmp_path / "environment.json").read_text())["stack"]
    assert kept == {"stacked": False, "times_as_fast": 0.5}
    assert slow.parts.pool.stacker is None  # type: ignore[attr-defined]
    # A resumed run measures nothing anew.
    monkeypatch.setattr(stack_choice, "compare_ways", lambda times: 9.0)
    few["schedule"] = {"kind": "parallel", "rounds": 3}
    resumed = Experiment(many("auto", **few), tmp_path)
    resumed.run(resume=True)
    assert resumed.parts.pool.stacker is None  # type: ignore[attr-defined]
    other = Experiment(many("auto", **few), tmp_path / "other")
    other.run(resume=False)
    assert other.parts.pool.stacker is not None  # type: ignore[attr-defined]
    assert max(stacked_steps) > 1


def test_auto_takes_one_after_another_where_none_can_be_stacked(tmp_path: Path) -> None:
    given = many("auto", aggregation="none", schedule={"kind": "parallel", "rounds": 1})
    warnings = list_warnings(given)
    assert any(says(line, "engine.stack: auto ... aggregation.kind none") for line in warnings)
    run = Experiment(given, tmp_path)
    run.run(resume=False)
    assert says(run.engine, "inline ... auto: aggregation.kind none")
    assert run.parts.pool.stacker is None  # type: ignore[attr-defined]


def test_methods_that_are_called_client_by_client_are_named() -> None:
    methods = [{"kind": "quantise"}, {"kind": "wcc", "weight": 0.1}]
    (line,) = list_warnings(many(3, method=methods[::-1]))
    assert says(line, "method.0.kind: wcc ... client by client")
    assert not list_warnings(many("off", method=methods[::-1]))


def test_the_way_is_part_of_a_run_and_off_changes_no_digest() -> None:
    assert not differences(many("off"), many("off", engine={"rest": "memory"}))
    (found,) = differences(many("off"), many(3))
    assert says(found, "engine.stack was null ... is 3")
    assert digest_of(many("off")) != digest_of(many(3)) != digest_of(many(4))
    assert "engine" not in str(dump_fields(many("off")))


def test_auto_measures_the_first_round_that_has_clients() -> None:
    """With availability the first rounds may be empty, or have a single client."""

    def choose(number: int) -> Lineup:
        steps = {1: {}, 2: {0: 3}, 3: {0: 3, 1: 0}, 4: {0: 3, 2: 3}}[number]
        return Lineup(number, Phase(TRAIN, rounds=4), 1.0, steps)

    program = SimpleNamespace(rounds=4, choose_lineup=choose)
    assert stack_choice._find_lineup(program).round == 4  # type: ignore[arg-type]
    program.rounds = 3
    assert stack_choice._find_lineup(program).round == 1  # type: ignore[arg-type]
