"""Frozen weights in 8 or 4 bits: the published values, exact cuts, gradients, fewer bytes."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from texts import LORA, TINY, api_scenario, reviews
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

from simsplit.assembly.exporting import convert_to_transformers
from simsplit.assembly.trained import Trained
from simsplit.errors import ScenarioError
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.frozen import copy_learning, share_frozen
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.quantised import (
    LEVELS,
    QuantisedForm,
    collect_weights,
    dequantise,
    list_quantised,
    list_weights,
    pack,
    quantise,
    unpack,
)
from simsplit.models.shards import READ
from simsplit.models.transformer import get_layers
from simsplit.models.whole import Sizes, build_config
from simsplit.scenario import parse

NF4_OF_THE_PACKAGE = [0, 0, 1, 17, 17, 17, 18, 34, 34, 51, 52, 68, 69, 85, 102, 103]
NF4_OF_THE_PACKAGE += [120, 136, 153, 170, 171, 187, 204, 204, 221, 221, 238, 238, 238, 239]
NF4_OF_THE_PACKAGE += [255, 255]
FORMS: tuple[QuantisedForm, ...] = ("int8", "nf4")
SEGMENTS = ("head", "trunk", "tail")
LENGTH, VOCABULARY = 16, 259
IDS = torch.arange(2 * LENGTH).view(2, LENGTH)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def by_hand(weight: Tensor, form: QuantisedForm) -> Tensor:
    """Return the values of a matrix by the papers' formulas, one by one."""
    made = weight.clone().flatten()
    if form == "int8":
        for row in made.view(weight.shape):
            largest = row.abs().max()
            row.copy_((127 / largest * row).round() * largest / 127)
        return made.view(weight.shape)
    for block in made.split(64):
        largest = block.abs().max()
        for index, value in enumerate(block.tolist()):
            level = min(LEVELS, key=lambda each: abs(each - value / largest.item()))
            block[index] = level * largest
    return made.view(weight.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(8, 64), (5, 24), (3, 7)])
def test_values_are_the_papers(shape: tuple[int, int], form: QuantisedForm) -> None:
    weight = draw(*shape)
    got = unpack(pack(weight, form), form, shape)
    assert torch.allclose(got, by_hand(weight, form), rtol=1e-6, atol=0)
    assert torch.equal(unpack(pack(got, form), form, shape), got), "a fixed point"
    experts = torch.stack([weight, 2 * weight])
    both = unpack(pack(experts, form), form, experts.shape)
    assert torch.equal(both, torch.stack([got, 2 * got]))


def test_bytes_are_those_of_the_package() -> None:
    """Codes and values of bitsandbytes 0.50.2 for these 64 weights."""
    weight = torch.linspace(-1, 1, 64).view(1, 64)
    codes, scales = pack(weight, "nf4")
    assert codes.flatten().tolist() == NF4_OF_THE_PACKAGE
    assert scales.tolist() == [1.0]


@pytest.mark.parametrize("form", FORMS)
def test_zeros_stay_zeros(form: QuantisedForm) -> None:
    zeros = torch.zeros(2, 64)
    assert torch.equal(unpack(pack(zeros, form), form, zeros.shape).abs(), zeros)


def make_layer(kind: str, inputs: int, outputs: int) -> nn.Module:
    layer = nn.Linear(inputs, outputs) if kind == "linear" else Conv1D(outputs, inputs)
    with torch.no_grad():
        layer.weight.copy_(draw(*layer.weight.shape))
    return layer.requires_grad_(False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["linear", "conv1d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_computes_with_the_values_in_both_directions(
    dtype: torch.dtype, kind: str, form: QuantisedForm
) -> None:
    layer = make_layer(kind, 24, 40).to(dtype)
    quantise(layer, form, dtype)
    plain = dequantise(copy.deepcopy(layer))
    assert not list(list_quantised(plain))
    got, expected = [], []
    for module, results in ((layer, got), (plain, expected)):
        x = draw(2, 5, 24).to(dtype).requires_grad_()
        out = module(x)
        out.float().square().sum().backward()
        assert x.grad is not None
        results += [out.detach(), x.grad]
    assert all(map(torch.equal, got, expected))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda nothing: nothing):
        layer(draw(2, 24).to(dtype).requires_grad_())
    assert not kept, "values are computed again, not kept"


def test_mixed_precision_is_that_of_a_plain_layer() -> None:
    layer = make_layer("linear", 24, 40)
    quantise(layer, "nf4", torch.float32)
    plain, results = dequantise(copy.deepcopy(layer)), []
    for module in (layer, plain):
        x = draw(3, 24).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = module(x)
        out.float().sum().backward()
        results.append((out.detach(), x.grad))
    assert results[0][0].dtype == torch.bfloat16
    assert all(map(torch.equal, *results))


def save(folder: Path, family: str, *, classes: int | None = None, tied: bool = False) -> Path:
    config = build_config(Sizes(family=family, width=32, layers=4))
    if classes is None:
        config.tie_word_embeddings = tied
        kind: Any = AutoModelForCausalLM
    else:
        config.num_labels, kind = classes, AutoModelForSequenceClassification
    torch.default_generator.manual_seed(0)
    model = kind.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder, max_shard_size="40KB")
    return folder


def quantise_whole(model: Any, layers: nn.Module, form: QuantisedForm) -> None:
    """Put quantised values into the library's own model, as plain weights."""
    model.config._experts_implementation = "eager"  # experts are computed one by one
    for owner, _, weight in list_weights(layers):
        rows = weight.data.mT if isinstance(owner, Conv1D) else weight.data
        values = unpack(pack(rows, form), form, rows.shape).to(weight.dtype)
        weight.data = values.mT.contiguous() if isinstance(owner, Conv1D) else values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_moe"])
def test_the_cut_is_the_whole_with_the_same_weights(
    family: str, dtype: str, form: QuantisedForm, tmp_path: Path
) -> None:
    folder = save(tmp_path, family)
    model = CausalLM(
        name=str(folder), head=1, tail=1, dtype=dtype, quantise=form, learns=["head", "tail"],
        lora=LORA,
    )  # fmt: skip
    READ.clear()
    head, trunk, tail = (model.segment(each, (LENGTH,), VOCABULARY, 0) for each in SEGMENTS)
    assert max(READ.values()) == 1
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    layers = whole.transformer.h if family == "gpt2" else whole.model.layers
    quantise_whole(whole, layers, form)
    with torch.no_grad():
        expected = whole(IDS, use_cache=False).logits.float()
    out = tail(trunk(head(IDS)))
    assert torch.equal(out, expected)
    assert trunk(head(IDS)).dtype == torch.float32
    out.logsumexp(-1).sum().backward()
    learned = [w for part in (head, tail) for w in part.parameters() if w.requires_grad]
    assert learned
    assert all(w.dtype == torch.float32 and w.grad is not None for w in learned)


def count_bytes(model: CausalLM, owner: str = "trunk") -> tuple[int, int]:
    """Return the bytes of a segment's weights in layers' matrices, and of all others."""
    segment = model.segment(owner, (LENGTH,), VOCABULARY, 0)
    matrices = {id(w) for _, _, w in list_weights(segment)}
    for each in list_quantised(segment):
        matrices |= {id(w) for n, w in each.owner._parameters.items() if n.startswith(each.name)}
    inside = sum(w.nbytes for w in segment.parameters() if id(w) in matrices)
    return inside, sum(w.nbytes for w in segment.parameters()) - inside


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_bytes_fall_as_the_forms_say(family: str) -> None:
    sizes = {"family": family, "width": 64, "layers": 3}

    def make(**changes: object) -> CausalLM:
        return CausalLM(sizes=sizes, head=1, tail=1, learns=[], **changes)

    plain, others = count_bytes(make())
    matrices = plain // 4
    rows = {"llama": 4 * 64 + 2 * 192 + 64, "qwen3_moe": 4 * 64 + 8 * (2 * 64 + 64)}[family]
    assert count_bytes(make(quantise="int8")) == (matrices + 4 * rows, others)
    assert count_bytes(make(quantise="nf4")) == (matrices // 2 + matrices // 16, others)
    assert count_bytes(make(quantise="nf4", dtype="bfloat16"))[0] == matrices // 2 + matrices // 16


def test_what_learns_whole_is_not_quantised() -> None:
    sizes = {"family": "llama", "width": 16, "layers": 3}
    model = CausalLM(sizes=sizes, head=1, tail=1, learns=["tail"], quantise="nf4")
    counts = {
        owner: len(list(list_quantised(model.segment(owner, (LENGTH,), VOCABULARY, 0))))
        for owner in SEGMENTS
    }
    assert counts == {"head": 7, "trunk": 7, "tail": 0}
    for nothing in ({}, {"trunk": "skipped", "learns": ["head", "tail"]}):
        with pytest.raises(ScenarioError) as caught:
            CausalLM(sizes=sizes, head=1, tail=1, quantise="int8", **nothing)
        assert caught.value.field == "model.quantise"
    CausalLM(sizes=sizes, head=1, tail=1, quantise="int8", lora=LORA)


def test_attackers_read_public_weights_as_they_are_published() -> None:
    sizes = {"family": "llama", "width": 16, "public": True}
    given = CausalLM(sizes=sizes, quantise="nf4", lora=LORA)
    assert given.widen() == CausalLM(sizes=sizes, lora=LORA)


def test_copies_and_twins_share_what_is_packed() -> None:
    sizes = {"family": "llama", "width": 16, "layers": 3}
    model = CausalLM(sizes=sizes, head=1, tail=1, quantise="nf4", lora=LORA)
    one, same = (model.segment("head", (LENGTH,), VOCABULARY, 0) for _ in range(2))
    for other in (copy_learning(one), share_frozen(same, one)):
        pairs = zip(list_quantised(one), list_quantised(other), strict=True)
        assert all(a.packed.codes.data_ptr() == b.packed.codes.data_ptr() for a, b in pairs)
        assert torch.equal(other(IDS), one(IDS))
        learned = [w.data_ptr() for w in other.parameters() if w.requires_grad]
        assert not {*learned} & {w.data_ptr() for w in one.parameters()}


@pytest.mark.parametrize("form", FORMS)
def test_encoders_and_apis_compute_with_the_same_values(
    form: QuantisedForm, tmp_path: Path
) -> None:
    folder = save(tmp_path, "bert", classes=2)
    given = {"name": str(folder), "quantise": form, "lora": LORA}
    parts = SequenceClassifier(head=1, tail=1, **given)
    head, trunk, tail = (parts.segment(each, (LENGTH,), 2, 0) for each in SEGMENTS)
    whole = AutoModelForSequenceClassification.from_pretrained(folder)
    quantise_whole(whole, whole.bert.encoder.layer, form)
    ids = IDS % 250 + 4
    with torch.no_grad():
        expected = whole(ids).logits
        assert torch.equal(tail(trunk(head(ids)))[:, 0], expected)
        served = AdaptedClassifier(**given)
        adapters, body, reader = (served.segment(each, (LENGTH,), 2, 0) for each in SEGMENTS)
        assert len(list(list_quantised(body))) == 4 * 6
        assert torch.allclose(reader(body(adapters(), ids)), expected, atol=1e-6)


def test_get_layers_are_what_is_quantised() -> None:
    sizes = {"family": "llama", "width": 16, "layers": 3}
    model = CausalLM(sizes=sizes, head=1, tail=1, quantise="nf4", lora=LORA)
    tail = model.segment("tail", (LENGTH,), VOCABULARY, 0)
    assert len(list(list_quantised(tail))) == len(list(list_quantised(get_layers(tail)))) == 7
    assert isinstance(tail.reader.weight, nn.Parameter)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_moe"])
def test_what_was_trained_is_put_back_into_the_whole(family: str, tmp_path: Path) -> None:
    name = str(save(tmp_path, family))
    model = CausalLM(name=name, head=1, tail=1, quantise="nf4", lora=LORA)
    parts = {each: model.segment(each, (LENGTH,), VOCABULARY, 0).eval() for each in SEGMENTS}
    with torch.no_grad():
        for part in parts.values():
            for weight in part.parameters():
                if weight.requires_grad:
                    weight.add_(0.1 * draw(*weight.shape))
        expected = parts["tail"](parts["trunk"](parts["head"](IDS)))
        network = SimpleNamespace(scenario=SimpleNamespace(model=model), **parts)
        whole = convert_to_transformers(cast("Trained", network)).eval()
        whole.config._experts_implementation = "eager"
        assert torch.allclose(whole(IDS).logits, expected, atol=1e-4)
    plain = collect_weights(parts["head"])
    packed = list(list_quantised(parts["head"]))
    assert plain.keys() == collect_weights(dequantise(parts["head"])).keys()
    assert packed
    assert all(tensor.is_floating_point() for tensor in plain.values())


def test_what_is_exported_is_in_the_type_of_the_files(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "llama", tied=True)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(
        tmp_path / "halved"
    )
    model = CausalLM(name=str(tmp_path / "halved"), head=1, tail=1, lora=LORA)
    parts = {each: model.segment(each, (LENGTH,), VOCABULARY, 0).eval() for each in SEGMENTS}
    network = SimpleNamespace(scenario=SimpleNamespace(model=model), **parts)
    whole = convert_to_transformers(cast("Trained", network))
    assert {weight.dtype for weight in whole.parameters()} == {torch.bfloat16}
    whole.save_pretrained(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {weight.dtype for weight in again.parameters()} == {torch.bfloat16}
    assert torch.equal(again.lm_head.weight.float(), parts["tail"].reader.weight)


@pytest.mark.parametrize("api", [False, True])
def test_scenarios_take_it(api: bool, tmp_path: Path) -> None:
    if api:
        given = api_scenario(tmp_path, model={"quantise": "nf4"})
    else:
        source = {**TINY["data"]["source"], "path": str(reviews(tmp_path / "reviews"))}
        model = {**TINY["model"], "quantise": "nf4", "lora": LORA}
        given = parse({**TINY, "data": {"source": source}, "model": model})
    assert given.model.quantise == "nf4"
