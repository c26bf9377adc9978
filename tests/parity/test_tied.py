"""Tied embeddings: a party with both ends of a model trains one table, as the whole model does."""

from collections.abc import Iterator
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import StopAt, experiment, run_to_end
from comparing import assert_equal, weights
from gists import says
from pace import quick, quick_rows
from safetensors.torch import load_file
from texts import LORA
from tied_models import tied_scenario
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from simsplit import load_trained, plan, run
from simsplit.assembly import ownership
from simsplit.assembly.exporting import WEIGHTS, convert_to_transformers, export
from simsplit.data.batches import Batch, draw_batches
from simsplit.data.texts import TextBatcher
from simsplit.errors import RunError
from simsplit.models.tied import COPY, TABLE, are_tied
from simsplit.report.run_tables import write_heading
from simsplit.results import Run
from simsplit.scenario import Scenario

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
ADAMW = {"kind": "adamw", "lr": 2e-3}


def draw_in_turn(given: Scenario) -> Iterator[Batch]:
    """Yield all batches of a run, one of each client in turn."""
    data = given.prepare_data()
    batcher = TextBatcher(data.train)
    for epoch in range(given.schedule.rounds or 0):
        cut = [
            draw_batches(torch.as_tensor(part), 8, given.seed, number, epoch, drop_last=False)
            for number, part in enumerate(data.parts)
        ]
        yield from (batcher.batch(rows) for lap in zip_longest(*cut) for rows in lap)


def train_whole(given: Scenario) -> nn.Module:
    """Train the uncut model by one optimizer, as one would write it by hand."""
    whole = AutoModelForCausalLM.from_pretrained(given.model.name).train()
    assert whole.lm_head.weight is whole.get_input_embeddings().weight
    optimizer = given.train.client.build(whole.parameters())
    for batch in draw_in_turn(given):
        logits = whole(input_ids=batch.inputs, use_cache=False).logits
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten()).backward()
        optimizer.step()
    return whole


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


CASES: dict[str, dict[str, Any]] = {
    "sgd": {"train": {"client": SGD, "server": SGD}},
    "adamw": {"train": {"client": ADAMW, "server": ADAMW}},
    "handed on": {"clients": {"count": 3}, "train": {"client": ADAMW, "server": ADAMW}},
    "averaged": {"aggregation": "splitfed_v2", "train": {"client": SGD, "server": SGD}},
    "with its trunk": {"aggregation": "splitfed_v1", "train": {"client": SGD, "server": SGD}},
}


@pytest.mark.parametrize(
    ("family", "case"),
    quick_rows(product(("llama", "gpt2"), CASES), ("llama", "handed on"), ("gpt2", "sgd")),
)
def test_training_is_that_of_the_whole_model_to_the_bit(
    family: str, case: str, tmp_path: Path
) -> None:
    given = tied_scenario(tmp_path, family, **CASES[case])
    run_to_end(given, tmp_path / "run")
    trained = convert_to_transformers(load_trained(tmp_path / "run"))
    assert trained.config.tie_word_embeddings
    assert_same_weights(trained, train_whole(given))


def test_clients_with_ends_of_their_own_each_have_one_table(tmp_path: Path) -> None:
    """Two whole models that share the middle layer, whose ends have an optimizer each."""
    train = {"client": ADAMW, "server": SGD}
    given = tied_scenario(tmp_path, clients={"count": 2, "heads": "per_client"}, train=train)
    run_to_end(given, tmp_path / "run")
    wholes = [AutoModelForCausalLM.from_pretrained(given.model.name).train() for _ in range(2)]
    trunk = wholes[0].model.layers[1]
    wholes[1].model.layers[1] = trunk
    inside = {id(weight) for weight in trunk.parameters()}
    server = given.train.server.build(trunk.parameters())
    ends = [
        given.train.client.build([p for p in whole.parameters() if id(p) not in inside])
        for whole in wholes
    ]
    for number, batch in enumerate(draw_in_turn(given)):
        whole, optimizers = wholes[number % 2], (ends[number % 2], server)
        logits = whole(input_ids=batch.inputs, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten())
        whole.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
    for number, whole in enumerate(wholes):
        trained = convert_to_transformers(load_trained(tmp_path / "run", number))
        assert_same_weights(trained, whole)


SHARES: dict[str, dict[str, Any]] = {
    "handed on": {"clients": {"count": 2}},
    "moments stay": {"clients": {"count": 2, "handover": "weights"}},
    "own": {"clients": {"count": 2, "heads": "per_client"}},
    "v1": {"clients": {"count": 2}, "aggregation": "splitfed_v1"},
    "v2 in few bits": {
        "clients": {"count": 2},
        "aggregation": {"kind": "splitfed_v2", "bits": 8},
    },
    "cuts of their own": {
        "clients": {"count": 2, "cut": [0, 1]},
        "model": {"head": 0},
        "aggregation": "splitfed_v2",
    },
}


@pytest.mark.parametrize("case", quick(SHARES, "moments stay", "cuts of their own"))
def test_a_stopped_and_resumed_run_is_the_same_with_one_table(case: str, tmp_path: Path) -> None:
    given = tied_scenario(tmp_path, **SHARES[case])
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "again", observers=[StopAt(9)])
    run(given, tmp_path / "again", resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")
    names = weights(tmp_path / "whole")
    assert any(name.endswith(TABLE) for name in names)
    assert not any(name.endswith(COPY) for name in names)
    trained = load_trained(tmp_path / "whole", 1 if given.has_own_models else None)
    assert are_tied(trained.head, trained.tail)


def test_a_hand_over_and_an_export_carry_one_table(tmp_path: Path) -> None:
    given = tied_scenario(tmp_path, clients={"count": 2})
    made = run_to_end(given, tmp_path / "run")
    table = made.parts.pool.clients[0].training.end.head.tokens.weight
    apart = tied_scenario(tmp_path, clients={"count": 2})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ownership, "has_one_table", lambda *given: False)
        run_to_end(apart, tmp_path / "apart")
    sent = [Run.load(tmp_path / name).wire.query("leg == 'handover'") for name in ("run", "apart")]
    # Adam's two moments travel beside the weights.
    fewer = 3 * table.nbytes * int(sent[0]["packets"].sum())
    assert sent[1]["bytes"].sum() - sent[0]["bytes"].sum() == pytest.approx(fewer, rel=1e-3)
    written = load_file(export(load_trained(tmp_path / "run"), tmp_path / "out", "safetensors")[0])
    assert (tmp_path / "out" / WEIGHTS).exists()
    assert torch.equal(written[TABLE], table)
    assert COPY not in written


APART: dict[str, tuple[dict[str, Any], str]] = {
    "vanilla": ({"topology": "vanilla"}, "topology vanilla"),
    "head": ({"model": {"learns": ["head", "trunk"]}}, "model.learns"),
    "tail": ({"model": {"learns": ["tail"]}}, "model.learns"),
    "shared tail": (
        {"clients": {"count": 2, "heads": "per_client", "tail": "shared"}},
        "clients.tail",
    ),
    "frozen by a method": (
        {"method": [{"kind": "dualguard", "warm_up": 1}], "data": {"auxiliary": 0.2}},
        "phase train",
    ),
}


@pytest.mark.parametrize("case", quick(APART, "vanilla", "frozen by a method"))
def test_where_one_optimizer_cannot_learn_it_there_are_two_tables_as_before(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, why = APART[case]
    given = tied_scenario(tmp_path, **changes)
    run_to_end(given, tmp_path / "run")
    assert says(write_heading(Run.load(tmp_path / "run")), f"note: ... {why}")
    assert any(why in note for note in plan(given, timing=False).facts.notes)
    trained = load_trained(tmp_path / "run", 0 if given.has_own_models else None)
    assert not are_tied(trained.head, trained.tail)
    assert not convert_to_transformers(trained).config.tie_word_embeddings
    monkeypatch.setattr(ownership, "has_one_table", lambda *given: False)
    run_to_end(given, tmp_path / "before")
    assert_equal(tmp_path / "run", tmp_path / "before")
    assert "note" not in write_heading(Run.load(tmp_path / "before"))


def test_a_frozen_table_is_one_in_memory_and_nothing_is_said(tmp_path: Path) -> None:
    made = experiment(tied_scenario(tmp_path, model={"lora": LORA}), tmp_path / "run")
    end = made.parts.pool.clients[0].training.end
    assert are_tied(end.head, end.tail)
    assert not end.head.tokens.weight.requires_grad
    assert made.live.copies == ""


def test_a_plan_counts_the_weights_of_the_whole_model(tmp_path: Path) -> None:
    given = tied_scenario(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(given.model.name)
    held = plan(given, timing=False).facts
    expected = sum(weight.nbytes for weight in whole.parameters())
    assert sum(each.gradients for each in held.footprints) == expected
    ends = expected - sum(weight.nbytes for weight in whole.model.layers[1].parameters())
    # Weights, gradients and Adam's moments; and rotary angles.
    (shared,) = [size for part, size in held.process.parts.items() if part.startswith("shared")]
    assert shared == pytest.approx(4 * ends, rel=1e-3)


def test_a_run_of_two_tables_is_read_and_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tied_scenario(tmp_path, schedule={"rounds": 1})
    with monkeypatch.context() as patched:
        patched.setattr(ownership, "has_one_table", lambda *given: False)
        run_to_end(given, tmp_path / "run")
    kept: dict[str, Tensor] = weights(tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    assert torch.equal(trained.head.tokens.weight, kept[f"holder/{TABLE}"])
    assert torch.equal(trained.tail.reader.weight, kept[f"holder/{COPY}"])
    longer = tied_scenario(tmp_path, schedule={"rounds": 2})
    with pytest.raises(RunError) as caught:
        run(longer, tmp_path / "run", resume=True)
    assert says(str(caught.value), "copy each ... --out")
