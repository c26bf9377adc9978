"""A forecast equals what a run then takes: bytes to the byte, and simulated time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from builders import enter_round, experiment, run_to_end, scenario
from pandas.testing import assert_frame_equal
from texts import CAUSAL, OF_PARTIES, text_scenario
from torch import Tensor

import simsplit
from simsplit.assembly import dry_step
from simsplit.assembly.dry_step import replace_segments
from simsplit.errors import ScenarioError
from simsplit.forecasting import outline, planning
from simsplit.models.transformer import Blocks
from simsplit.results import Run
from simsplit.scenario import Scenario

API: dict[str, Any] = {
    "kind": "adapted_classifier",
    "sizes": {"width": 16, "layers": 3},
    "adapters": 2,
    "lora": {"rank": 2},
}
PARTIES: dict[str, Any] = {
    "data": {"partition": {"kind": "parts", "parts": 2}},
    "topology": "vertical",
    "vertical": {"party": 0},
    "clients": {"count": 2, "heads": "per_client"},
    "model": {"kind": "mlp"},
}
CHANGES: dict[str, dict[str, Any]] = {
    "shared heads": {"method": [{"kind": "lightsplit", "ratio": 8}]},
    "own heads": {
        "clients": {"heads": "per_client"},
        "method": [{"kind": "quantise", "bits": 3}],
        "evaluate": {"every": 2, "batch_size": 16},
        "schedule": {"rounds": 4, "local_steps": 3},
    },
    "top-k": {
        "method": [{"kind": "topk", "ratio": 8}],
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.5}, "validation": 0.2},
        "network": {"device": {"phone": 0.5, "laptop": 0.5}, "spread": 0.5},
    },
    "served tail": {
        "topology": "vanilla",
        "schedule": {"kind": "per_client", "rounds": 2},
        "network": {},
    },
    "averages of trunks": {
        "schedule": {"kind": "parallel", "rounds": 3},
        "aggregation": {"kind": "splitfed_v1"},
        "network": {"server": {"slots": 2}},
    },
    "averages in few bits": {
        "clients": {"count": 5},
        "schedule": {"kind": "parallel", "rounds": 4, "order": "random"},
        "aggregation": {"kind": "splitfed_v2", "bits": 4},
        "cohort": {"fraction": 0.5, "dropout": 0.4},
        "network": {},
    },
    "a deadline": {
        "clients": {"count": 5, "heads": "per_client"},
        "schedule": {"kind": "parallel", "rounds": 3},
        "cohort": {"deadline_s": 0.3, "late": "skip"},
        "network": {"device": {"phone": 0.5, "edge": 0.5}, "link": "lte", "spread": 1.0},
    },
    "one step together": {
        "schedule": {"kind": "parallel", "rounds": 2},
        "aggregation": "fused",
        "network": {},
    },
    "parties": {
        **PARTIES,
        "method": [
            {"kind": "lightsplit", "ratio": 8, "by": "party 0"},
            {"kind": "cast", "by": "party 1"},
        ],
        "cohort": {"dropout": 0.3},
        "network": {"device": {"phone": 0.5, "laptop": 0.5}},
    },
    "parties that miss batches": {
        **PARTIES,
        "schedule": {"kind": "round_robin", "rounds": 6, "local_steps": 3},
        "train": {"batch_size": 12},
        "cohort": {"dropout": 0.5},
        "seed": 0,
    },
    "as they come": {
        "clients": {"heads": "per_client"},
        "schedule": {"kind": "asynchronous", "rounds": 2, "max_ahead": 2},
        "network": {"device": {"phone": 0.5, "laptop": 0.5}, "spread": 0.5},
    },
    "in parts": {"train": {"accumulate": 4}, "network": {}},
    "no rounds": {"schedule": {"rounds": 0}},
}
TEXTS: dict[str, dict[str, Any]] = {
    "fields of parties": OF_PARTIES,
    "a warm-up": {
        "model": {**CAUSAL, "sizes": {**CAUSAL["sizes"], "public": True}},
        "method": [{"kind": "admi", "warm_up": 1}],
        "clients": {"heads": "per_client"},
        "schedule": {"rounds": 2},
        "network": {},
    },
    "an API": {
        "topology": "api",
        "model": API,
        "servers": 2,
        "method": [{"kind": "p3eft", "messages": 2}],
        "network": {},
    },
    "classes": {"network": {}},
    "encoder": {"model": {"sizes": {"family": "bert"}}, "clients": {"heads": "per_client"}},
    "noised embeddings": {
        "model": CAUSAL,
        "data": {"auxiliary": 0.4},
        "method": [{"kind": "snd", "warm_up": 1}],
        "network": {},
    },
    "tokens": {
        "model": CAUSAL,
        "data": {"auxiliary": 0.4},
        "method": [{"kind": "mixguard", "warm_up": 1, "refine_every": 2}],
        "evaluate": {"controls": ["without_trunk"]},
        "network": {},
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forecast_of_images_equals_the_run(name: str, tmp_path: Path) -> None:
    compare(scenario(**CHANGES[name]), tmp_path / "run")


@pytest.mark.parametrize("name", TEXTS)
def test_a_forecast_of_texts_equals_the_run(name: str, tmp_path: Path) -> None:
    compare(text_scenario(tmp_path, **TEXTS[name]), tmp_path / "run")


@pytest.mark.parametrize("name", ["shared heads", "top-k", "served tail", "in parts", "parties"])
def test_stand_ins_for_segments_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_step, "COSTLY", 0)
    compare(scenario(**CHANGES[name]), tmp_path / "run")


@pytest.mark.parametrize("name", TEXTS)
def test_stand_ins_change_nothing_with_texts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_step, "COSTLY", 0)
    compare(text_scenario(tmp_path, **TEXTS[name]), tmp_path / "run")


@pytest.mark.parametrize("method", ["admi", "dualguard", "snd"])
def test_no_segment_computes_where_steps_are_costly(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods that see embeddings or the public tail are no reason to compute."""
    monkeypatch.setattr(dry_step, "COSTLY", 0)
    forward = Blocks.forward
    standing: list[bool] = []

    @contextmanager
    def replace(*given: Any) -> Iterator[None]:
        standing.append(True)
        with replace_segments(*given):
            yield
        standing.append(False)

    def refuse(self: Blocks, *given: Any, **more: Any) -> Any:
        assert not (standing and standing[-1])
        return forward(self, *given, **more)

    monkeypatch.setattr(dry_step, "replace_segments", replace)
    monkeypatch.setattr(Blocks, "forward", refuse)
    sizes = {**CAUSAL["sizes"], "public": True}
    changes = {"model": {**CAUSAL, "sizes": sizes}, "data": {"auxiliary": 0.4}}
    given = text_scenario(tmp_path, **changes, method=[{"kind": method, "warm_up": 1}])
    simsplit.plan(given, timing=False)
    assert standing


def test_no_step_of_a_slow_model_is_computed_and_the_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = text_scenario(tmp_path, model=CAUSAL)
    exact = simsplit.plan(given, timing=False)
    monkeypatch.setattr(dry_step, "COSTLY", 0)
    monkeypatch.setattr(dry_step, "SLOW", 0)
    monkeypatch.setattr(planning, "_estimate_evaluation_s", None)
    monkeypatch.setattr(dry_step.Prober, "walk", None)
    made = simsplit.plan(given)
    assert planning.TOO_SLOW in made.facts.notes
    assert made.bytes_total == exact.bytes_total
    assert made.facts.train_s
    assert 0 < (made.facts.evaluate_s or 0) < made.facts.train_s
    activations = [
        sum(each.activations for each in plan.facts.footprints) for plan in (made, exact)
    ]
    assert activations[0] == pytest.approx(activations[1], rel=0.3)


@pytest.mark.parametrize("partition", ["iid", "linear", "exponential"])
def test_data_that_are_not_read_are_divided_as_in_the_run(
    partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outline, "_is_at_hand", lambda scenario: False)
    data = {"partition": partition, "validation": 0.1, "train_samples": 200}
    compare(scenario(data=data, network={}, evaluate={"batch_size": 16}), tmp_path / "run")


def test_bytes_with_texts_of_others_are_an_estimate(tmp_path: Path) -> None:
    changes = {"model": CAUSAL, "data": {"auxiliary": 0.4}, "method": [{"kind": "cover"}]}
    given = text_scenario(tmp_path, **changes)
    forecast = simsplit.plan(given, timing=False)
    assert outline.MIXED in forecast.facts.notes
    run_to_end(given, tmp_path / "run")
    planned, sent = forecast.wire, Run.load(tmp_path / "run").wire
    assert planned["packets"].sum() == sent["packets"].sum()
    assert planned["bytes"].sum() == pytest.approx(sent["bytes"].sum(), rel=0.05)


def test_texts_that_are_not_read_are_bounded_from_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outline, "_is_at_hand", lambda scenario: False)
    given = text_scenario(tmp_path, model=CAUSAL, method=[{"kind": "quantise", "bits": 4}])
    forecast = simsplit.plan(given, timing=False)
    assert outline.LONGEST in forecast.facts.notes
    run_to_end(given, tmp_path / "run")
    rounds = Run.load(tmp_path / "run").rounds
    assert forecast.rounds["samples"].tolist() == rounds["samples"].tolist()
    assert forecast.bytes_total > rounds["bytes_total"].iloc[-1]


def test_a_party_holds_what_its_tensors_hold_in_a_run(tmp_path: Path) -> None:
    given = scenario(train={"client": {"kind": "adam"}, "server": {"kind": "sgd", "momentum": 0.9}})
    forecast = simsplit.plan(given, timing=False)
    run = run_to_end(given, tmp_path / "run")
    parts = run.parts.pool.clients[0].keeping.parts
    held = {"client": parts.learners, "server": (run.parts.server.learner,)}
    for planned in forecast.facts.footprints:
        learners = held[planned.party]
        tensors = [
            tensor
            for learner in learners
            for module in learner.modules.values()
            for tensor in (*module.parameters(), *module.buffers())
        ]
        moments = [t for learner in learners for t in learner.moments().values()]
        learned = [p for learner in learners for p in learner.parameters]
        assert planned.weights == sum(t.nbytes for t in tensors)
        assert planned.gradients == sum(p.nbytes for p in learned)
        assert planned.moments == sum(t.nbytes for t in moments)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_those_that_a_step_of_the_run_keeps(
    checkpointing: bool, tmp_path: Path
) -> None:
    given = scenario(
        model={"kind": "resnet18"},
        data={"source": {"size": 32}},
        train={"checkpointing": checkpointing},
    )
    _, server = simsplit.plan(given, timing=False).facts.footprints
    run = experiment(given, tmp_path / "run")
    enter_round(run, 1)
    model = run.live.parts.server.end.trunk
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor.untyped_storage().nbytes()
            alive.append(tensor.detach())
        return tensor.detach()

    alive: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(torch.randn(16, *given.shapes(run.data.info)[0][0], requires_grad=True))
    counted = sum(kept.values())
    if checkpointing:
        assert server.activations > counted  # and the largest unit's
    else:
        assert server.activations == pytest.approx(counted, rel=0.02)


def compare(given: Scenario, path: Path) -> None:
    """Hold a forecast against the tables of a run."""
    forecast = simsplit.plan(given, timing=False)
    run_to_end(given, path)
    run = Run.load(path)
    assert_frame_equal(sort(forecast.wire), sort(run.wire[list(forecast.wire.columns)]))
    ours, theirs = forecast.rounds, run.rounds
    for column in ("bytes_up", "bytes_down", "bytes_total", "steps", "samples"):
        assert ours[column].tolist() == theirs[column].tolist(), column
    if given.network is not None:
        assert ours["simulated_s"].tolist() == pytest.approx(theirs["simulated_s"].tolist())
        assert forecast.simulated_s == pytest.approx(theirs["simulated_total_s"].iloc[-1])


def sort(wire: pd.DataFrame) -> pd.DataFrame:
    keys = ["round", "client", "phase", "leg"]
    return wire.sort_values(keys).reset_index(drop=True)


ADAPTED = {"lora": {"rank": 2}, "learns": ["head", "tail"]}


@pytest.mark.parametrize("changes", [{}, ADAPTED, {**ADAPTED, "quantise": "nf4"}])
def test_a_model_is_planned_without_its_weights_as_with_them(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {**CAUSAL, **changes}
    given = text_scenario(
        tmp_path,
        model=model,
        method=[{"kind": "quantise", "bits": 4}],
        clients={"heads": "per_client"},
    )
    whole = simsplit.plan(given, timing=False)
    monkeypatch.setattr(planning, "LARGE", 0)
    forms = simsplit.plan(given)
    assert forms.facts.wall_s is None
    assert_frame_equal(forms.wire, whole.wire)
    # torch counts products of attention on other devices than a CPU: two for each of three layers.
    more = forms.flops["forward"] - whole.flops["forward"]
    assert more.tolist() == [4 * 32 * 32 * 16] * 3
    for ours, theirs in zip(forms.facts.footprints, whole.facts.footprints, strict=True):
        held = [(each.weights, each.gradients, each.moments) for each in (ours, theirs)]
        assert held[0] == held[1]
        assert ours.activations == pytest.approx(theirs.activations, rel=0.25)


@pytest.mark.parametrize("kind", ["admi", "snd", "text_obfuscator"])
def test_a_method_that_reads_weights_is_refused_where_there_are_none(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LARGE", 0)
    model = {**CAUSAL, "sizes": {**CAUSAL["sizes"], "public": True}}
    changes = {"model": model, "method": [{"kind": kind}], "data": {"auxiliary": 0.4}}
    given = text_scenario(tmp_path, clients={"heads": "per_client"}, **changes)
    with pytest.raises(ScenarioError) as caught:
        simsplit.plan(given)
    assert caught.value.field.startswith("method")
