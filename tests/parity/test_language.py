"""Text clients: split training is the whole transformer's, wherever padding is and clients live."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
from builders import StopAt, run_to_end
from comparing import assert_equal
from hosted import place_on
from pace import quick
from texts import CAUSAL, LORA, text_scenario

from simsplit import run
from simsplit.data.batches import draw_batches
from simsplit.data.texts import TextBatcher
from simsplit.engine.ray_pool import Hosts
from simsplit.models.whole import build_config
from simsplit.results import Run
from simsplit.scenario import Scenario
from simsplit.scenario.files import merge

LM = {"kind": "causal_lm", "sizes": {"width": 16}, "head": 1, "tail": 1}
FAMILIES = pytest.mark.parametrize("family", quick(["llama", "qwen3", "gpt2"], "qwen3"))


def whole(given: Scenario, classes: int) -> torch.nn.Module:
    """Build the uncut model, with the weights that the segments start from."""
    config = build_config(given.model.sizes)
    config.num_labels = classes
    made = (
        transformers.AutoModelForCausalLM.from_config(config)
        if given.model.kind == "causal_lm"
        else transformers.AutoModelForSequenceClassification.from_config(config)
    )
    parts = given.model.build((given.data.source.length,), classes, given.seed)
    body = made.base_model
    cut = [*parts.head.blocks.layers, *parts.trunk.layers, *parts.tail.blocks.layers]
    layers = body.h if hasattr(body, "h") else body.layers
    for layer, own in zip(layers, cut, strict=True):
        layer.load_state_dict(own.state_dict())
    made.get_input_embeddings().load_state_dict(parts.head.tokens.state_dict())
    norm = body.ln_f if hasattr(body, "ln_f") else body.norm
    norm.load_state_dict(parts.tail.norm.state_dict())
    if hasattr(body, "wpe"):
        body.wpe.load_state_dict(parts.head.positions.state_dict())
    reader = made.lm_head if given.model.kind == "causal_lm" else made.score
    reader.load_state_dict(parts.tail.reader.state_dict())
    return made.train()


def losses_of_the_whole(given: Scenario) -> list[float]:
    """Compute each round's mean loss by one optimizer on the uncut model."""
    data = given.prepare_data()
    model = whole(given, data.info.classes)
    optimizer = given.train.client.build(model.parameters())
    batcher = TextBatcher(data.train)
    means = []
    for epoch in range(2):
        part = torch.as_tensor(data.parts[0])
        sums = [0.0, 0]
        for rows in draw_batches(part, 8, given.seed, 0, epoch, drop_last=False):
            batch = batcher.batch(rows)
            learned = batch.labels != -100
            real = batch.inputs != 0
            if given.model.kind == "causal_lm":
                out = model(input_ids=batch.inputs, attention_mask=real.long()).logits[learned]
            else:
                out = model(input_ids=batch.inputs, attention_mask=real.long()).logits
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(out, batch.labels[learned])
            loss.backward()
            optimizer.step()
            count = int(learned.sum())
            sums = [sums[0] + loss.item() * count, sums[1] + count]
        means.append(sums[0] / sums[1])
    return means


@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("model", quick([{}, LM], LM), ids=["classifier", "words"])
def test_split_training_is_that_of_the_whole_model(family, model, tmp_path):
    model = {**model, "sizes": {"family": family, "width": 16}}
    given = text_scenario(tmp_path, model=model, clients={"count": 1})
    expected = losses_of_the_whole(given)
    rounds = Run.load(run_to_end(given, tmp_path / "run").path).rounds
    assert rounds["train_loss"].tolist() == pytest.approx(expected, rel=2e-5)
    assert rounds["train_loss"][1] < rounds["train_loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("model", quick([{}, LM], LM), ids=["classifier", "words"])
def test_padding_on_the_left_changes_nothing_but_that_a_mask_crosses(model, tmp_path):
    made = {}
    for side in ("right", "left"):
        given = text_scenario(tmp_path, model=model, data={"source": {"padding": side}})
        made[side] = Run.load(run_to_end(given, tmp_path / side).path)
    right, left = (made[side].rounds["train_loss"].tolist() for side in ("right", "left"))
    assert left == pytest.approx(right, rel=1e-4)
    bytes_of = {side: _bytes(made[side].wire) for side in made}
    tokens = bytes_of["right"]["smashed"] / (16 * 4)
    assert bytes_of["left"]["smashed"] == bytes_of["right"]["smashed"] + tokens
    for leg in ("features", "features_grad", "smashed_grad"):
        assert bytes_of["left"][leg] == bytes_of["right"][leg]


def _bytes(wire: pd.DataFrame) -> dict[str, int]:
    trained = wire[wire["phase"] == "train"]
    return trained.groupby("leg")["bytes"].sum().to_dict()


@pytest.mark.slow
def test_a_vanilla_cut_learns_the_same(tmp_path):
    rounds = []
    for topology in ("u_shaped", "vanilla"):
        given = text_scenario(tmp_path, topology=topology, model=LM)
        rounds.append(Run.load(run_to_end(given, tmp_path / topology).path).rounds)
    assert rounds[0]["train_loss"].tolist() == pytest.approx(rounds[1]["train_loss"].tolist())
    assert rounds[0]["test_loss"].tolist() == pytest.approx(rounds[1]["test_loss"].tolist())


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_is_the_same(tmp_path):
    given = text_scenario(tmp_path, model=LM, clients={"heads": "per_client"})
    run_to_end(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path / "again", observers=[StopAt(6)])
    run(given, tmp_path / "again", resume=True)
    assert_equal(tmp_path / "whole", tmp_path / "again")


QUANTISED = {**CAUSAL, "lora": LORA, "quantise": "nf4"}
MODELS = {"plain": LM, "nf4": QUANTISED, "nf4 in bf16": {**QUANTISED, "dtype": "bfloat16"}}
OWNERS: dict[str, dict[str, Any]] = {
    "shared head": {},
    "own heads": {"clients": {"heads": "per_client"}},
    "own trunks": {"aggregation": "splitfed_v1"},
}


@pytest.mark.ray
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("model", MODELS)
def test_hosts_change_nothing(model: str, owner: str, tmp_path: Path, hosts: Hosts):
    """Each host quantises the frozen weights of its clients itself."""
    given = text_scenario(
        tmp_path, model=MODELS[model], **merge({"clients": {"count": 3}}, OWNERS[owner])
    )
    run(given, tmp_path / "here")
    place_on(given, tmp_path / "there", hosts, [0, 1, 1]).run(resume=False)
    assert_equal(tmp_path / "here", tmp_path / "there")
