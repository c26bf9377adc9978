"""Runs that keep less for a step: recomputed activations, and mini-batches in parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, enter_round, experiment, run_to_end, scenario
from comparing import assert_equal
from pace import quick
from texts import CAUSAL, LORA, api_scenario, text_scenario

from simsplit.assembly.trained import load_trained
from simsplit.errors import ScenarioError
from simsplit.experiment import Experiment
from simsplit.parties.calls import OwnState
from simsplit.results import Run

ADAM = {"kind": "adam", "lr": 2e-3}
SGD = {"kind": "sgd", "lr": 0.1}
OWN = {"heads": "per_client"}
WIFI = {"device": "laptop", "link": "wifi"}
BATCH_NORM = {"cut": "l2h"}
CHEAP = {"checkpointing": True}
IMAGES: dict[str, dict[str, Any]] = {
    "in turn": {"model": BATCH_NORM, "train": {"client": ADAM, "server": ADAM}},
    "vanilla": {"model": BATCH_NORM, "topology": "vanilla"},
    "each a trunk": {"model": BATCH_NORM, "aggregation": "splitfed_v1"},
    "at their own pace": {
        "model": BATCH_NORM,
        "clients": OWN,
        "schedule": {"kind": "asynchronous", "rounds": 2},
        "network": WIFI,
    },
    "bf16": {"model": BATCH_NORM, "train": {"precision": "bf16"}},
    "nothing learns at the server": {"model": {**BATCH_NORM, "learns": ["head", "tail"]}},
}


@pytest.mark.parametrize("case", quick(IMAGES, "in turn", "at their own pace"))
def test_recomputed_activations_of_images_train_the_same(case: str, tmp_path: Path) -> None:
    given = scenario(**IMAGES[case])
    train = {**given.train.model_dump(), **CHEAP}
    run_to_end(given, tmp_path / "kept")
    run_to_end(given.model_copy(update={"train": train}), tmp_path / "again")
    assert_equal(tmp_path / "kept", tmp_path / "again")


TEXTS: dict[str, dict[str, Any]] = {
    "causal, dropout": {
        "model": {**CAUSAL, "lora": {**LORA, "dropout": 0.2}},
    },
    "frozen in 16 bits": {
        "model": {**CAUSAL, "lora": LORA, "dtype": "bfloat16", "learns": ["head", "tail"]},
        "clients": {"heads": "per_client"},
    },
    "frozen in four bits": {
        "model": {**CAUSAL, "lora": LORA, "quantise": "nf4", "learns": ["head", "tail"]},
        "clients": {"heads": "per_client"},
    },
    "encoder": {"model": {"sizes": {"family": "bert"}, "dtype": "bfloat16", "lora": LORA}},
    "relative positions": {"model": {"sizes": {"family": "deberta-v2"}}},
    "a method reads embeddings": {
        "model": {**CAUSAL, "sizes": {**CAUSAL["sizes"], "public": True}},
        "data": {"auxiliary": 0.3},
        "method": [{"kind": "admi", "warm_up": 1, "heads": 2}],
    },
}


@pytest.mark.parametrize("case", quick(TEXTS, "causal, dropout"))
def test_recomputed_activations_of_texts_train_the_same(case: str, tmp_path: Path) -> None:
    given = text_scenario(tmp_path, **TEXTS[case])
    train = {**given.train.model_dump(), **CHEAP}
    run_to_end(given, tmp_path / "kept")
    run_to_end(given.model_copy(update={"train": train}), tmp_path / "again")
    assert_equal(tmp_path / "kept", tmp_path / "again")


@pytest.mark.parametrize("api", quick([False, True], False))
def test_quantised_runs_are_resumed_and_rebuilt(api: bool, tmp_path: Path) -> None:
    if api:
        given = api_scenario(tmp_path, model={"quantise": "int8"})
    else:
        given = text_scenario(tmp_path, model={**CAUSAL, "lora": LORA, "quantise": "nf4"})
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Experiment(given, tmp_path / "stopped", [StopAt(steps=10)]).run(resume=False)
    experiment(given, tmp_path / "stopped").run(resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "stopped")
    network = load_trained(tmp_path / "stopped", 0 if api else None)
    weights = network.weights()
    assert any(not tensor.requires_grad and tensor.ndim == 2 for tensor in weights.values())
    assert all(tensor.is_floating_point() for tensor in weights.values())


@pytest.mark.parametrize("family", quick(["llama", "bert", "t5"], "llama"))
def test_recomputed_activations_under_an_api_train_the_same(family: str, tmp_path: Path) -> None:
    given = api_scenario(tmp_path, family, method=[{"kind": "p3eft"}])
    train = {**given.train.model_dump(), **CHEAP}
    run_to_end(given, tmp_path / "kept")
    run_to_end(given.model_copy(update={"train": train}), tmp_path / "again")
    assert_equal(tmp_path / "kept", tmp_path / "again")


def test_methods_that_judge_whole_mini_batches_refuse_parts(tmp_path: Path) -> None:
    given = scenario(train={"accumulate": 2}, method=[{"kind": "splitguard"}])
    with pytest.raises(ScenarioError) as caught:
        experiment(given, tmp_path / "run")
    assert caught.value.field == "train.accumulate"


def test_parts_of_a_mini_batch_are_learned_from_once(tmp_path: Path) -> None:
    made = experiment(scenario(train={"accumulate": 2}), tmp_path / "run")
    enter_round(made, 1)
    made.parts.exchange.step(0)
    assert made.parts.server.updates == 1


def test_gradients_of_a_step_that_was_given_up_are_not_learned(tmp_path: Path) -> None:
    """A step in parts may end after its first ones, whose gradients the server then still has."""
    trunks = []
    for left in (False, True):
        made = experiment(scenario(train={"accumulate": 2}), tmp_path / str(left))
        enter_round(made, 1)
        if left:
            for parameter in made.parts.server.learner.parameters:
                parameter.grad = torch.ones_like(parameter)
        made.parts.exchange.step(0)
        trunks.append([each.detach().clone() for each in made.parts.server.learner.parameters])
    assert all(one.equal(other) for one, other in zip(*trunks, strict=True))


@pytest.mark.slow
def test_parts_of_an_api_are_one_step(tmp_path: Path) -> None:
    """Texts are computed by themselves, so only rounding tells parts from the whole."""
    runs = [
        run_to_end(
            api_scenario(tmp_path, train={"accumulate": parts, "client": SGD}),
            tmp_path / str(parts),
        )
        for parts in (1, 4)
    ]
    whole, parted = ([*each.parts.pool.ask(0, OwnState()).values()] for each in runs)
    for one, other in zip(whole, parted, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)
    steps = [Run.load(tmp_path / str(parts)).clients["samples"].tolist() for parts in (1, 4)]
    assert steps[0] == steps[1]


def test_parts_of_texts_count_by_their_tokens(tmp_path: Path) -> None:
    """The loss is a mean over tokens, so long texts weigh more than short ones in any part."""
    own = {"model": CAUSAL, "clients": {"count": 1}, "schedule": {"rounds": 1, "local_steps": 1}}
    own["data"] = {"source": {"learns": "all"}}
    sides = {"client": SGD, "server": SGD, "batch_size": 8}
    made = [
        load_trained(
            run_to_end(
                text_scenario(tmp_path, **own, train={**sides, "accumulate": parts}),
                tmp_path / str(parts),
            ).path
        ).weights()
        for parts in (1, 4)
    ]
    for name, weight in made[0].items():
        torch.testing.assert_close(made[1][name], weight, rtol=1e-4, atol=1e-6)
