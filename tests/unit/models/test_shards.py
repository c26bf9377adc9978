"""Segments of a saved model: read alone, once, in one type, and the same as the whole's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gists import says
from pace import quick
from transformers import AutoModelForCausalLM, MixtralConfig

from simsplit.assembly.ownership import Ownership
from simsplit.data.samples import DataInfo
from simsplit.errors import ScenarioError
from simsplit.models import adapted, frozen, language, text_model
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import SegmentRequest
from simsplit.models.frozen import copy_learning
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.shards import READ
from simsplit.models.whole import Sizes, build_config
from simsplit.parties.client_end import ClientParts
from simsplit.scenario import parse

SEGMENTS = ("head", "trunk", "tail")
LENGTH, VOCABULARY = 16, 259
CPU = torch.device("cpu")


def save(folder: Path, family: str, *, tied: bool) -> Path:
    """Save a random model of four layers in many files."""
    config = build_config(Sizes(family=family, width=32, layers=4))
    config.tie_word_embeddings = tied
    torch.default_generator.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder, max_shard_size="40KB")
    return folder


FAMILIES = [("llama", False), ("qwen3", True), ("gpt2", True), ("qwen3_moe", False)]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    family, tied = request.param
    return save(tmp_path_factory.mktemp(family), family, tied=tied)


def cut(folder: Path, dtype: str, **changes: object) -> CausalLM:
    return CausalLM(name=str(folder), head=1, tail=1, dtype=dtype, **changes)


def make(model: CausalLM | SequenceClassifier, *owners: str) -> list[torch.nn.Module]:
    return [model.segment(owner, (LENGTH,), VOCABULARY, 0) for owner in owners or SEGMENTS]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cut_is_the_whole_in_the_same_type(folder: Path, dtype: str) -> None:
    READ.clear()
    parts = make(cut(folder, dtype, learns=[]))
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    out = ids = torch.arange(2 * LENGTH).view(2, LENGTH)
    with torch.no_grad():
        for part in parts:
            out = part(out)
            assert out.dtype == torch.float32
        expected = whole(ids, use_cache=False).logits.float()
    assert torch.equal(out, expected)
    assert {weight.dtype for part in parts for weight in part.parameters()} == {
        getattr(torch, dtype)
    }
    again = [name for name, times in READ.items() if times > 1]
    assert len(again) <= 1  # embeddings that are the output layer, too
    # Experts are saved one by one.
    together = {name for name in whole.state_dict() if ".experts." in name}
    assert set(whole.state_dict()) - {"lm_head.weight"} - together <= set(READ)


def test_what_learns_is_in_float32_and_adapters_train(folder: Path) -> None:
    model = cut(folder, "bfloat16", learns=["head", "tail"], lora={"rank": 2})
    head, trunk, tail = make(model)
    types = {
        weight.requires_grad: weight.dtype for part in (head, tail) for weight in part.parameters()
    }
    assert types == {True: torch.float32, False: torch.bfloat16}
    ids = torch.arange(LENGTH)[None]
    tail(trunk(head(ids))).logsumexp(-1).sum().backward()
    grads = [w.grad for part in (head, tail) for w in part.parameters() if w.requires_grad]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    whole = cut(folder, "bfloat16", learns=["head"])
    assert {weight.dtype for weight in make(whole, "head")[0].parameters()} == {torch.float32}
    assert make(whole)[2](make(whole)[1](make(whole)[0](ids))).isfinite().all()


def test_a_client_needs_none_of_the_trunks_files(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "llama", tied=False)
    READ.clear()
    make(cut(folder, "float32"), "trunk")
    of_trunk = set(READ)
    for file in folder.glob("*.safetensors"):
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            names = set(opened.keys())
        if names <= of_trunk:
            file.write_bytes(b"no weights")
    READ.clear()
    make(cut(folder, "float32"), "head", "tail")
    assert READ
    assert not of_trunk & set(READ)
    with pytest.raises(ScenarioError) as caught:
        make(cut(folder, "float32"), "trunk")
    assert caught.value.field == "model.name"


def save_encoder(folder: Path, family: str, form: str, classes: int = 2) -> Path:
    """Save a random encoder with the classification layers of some form, or none."""
    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
    from transformers import T5ForConditionalGeneration as WholeT5

    config = build_config(Sizes(family=family, width=32, layers=4))
    config.num_labels = classes
    torch.default_generator.manual_seed(0)
    kinds = {"classes": AutoModelForSequenceClassification, "words": AutoModelForMaskedLM}
    kinds |= {"bare": AutoModel}
    made = WholeT5(config) if family == "t5" else kinds[form].from_config(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    made.save_pretrained(folder, max_shard_size="40KB")
    return folder


def forbid(*args: object) -> None:
    raise AssertionError(f"loaded whole: {args}")


def compare_with_the_whole(
    model: CausalLM | SequenceClassifier | AdaptedClassifier,
    classes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make each segment from files and from the whole model: the same names, weights and types."""
    request = [SegmentRequest(each, (LENGTH,), classes, 5) for each in SEGMENTS]
    with monkeypatch.context() as patched:
        for place in (language, adapted):
            patched.setattr(place, "load_model", forbid)
        read = [model.make_segment(each) for each in request]
    monkeypatch.setattr(text_model, "find_weight_files", lambda *given: None)
    for one, each in zip(read, request, strict=True):
        other = model.make_segment(each)
        mine, expected = one.state_dict(), other.state_dict()
        assert mine.keys() == expected.keys()
        for name, tensor in expected.items():
            assert mine[name].dtype == tensor.dtype
            assert torch.equal(mine[name], tensor), name
        learned = [n for n, w in other.named_parameters() if w.requires_grad]
        assert [n for n, w in one.named_parameters() if w.requires_grad] == learned


@pytest.mark.parametrize(
    "saved",
    quick(
        [
            ("bert", "classes", 2),
            ("bert", "classes", 5),
            ("bert", "words", 2),
            ("bert", "bare", 2),
            ("roberta", "classes", 2),
            ("roberta", "words", 2),
            ("deberta-v2", "classes", 2),
            ("deberta-v2", "words", 2),
            ("deberta-v2", "bare", 2),
        ],
        ("bert", "classes", 2),
        ("bert", "words", 2),
        ("roberta", "words", 2),
        ("deberta-v2", "bare", 2),
    ),
)
@pytest.mark.parametrize("served", [False, True])
def test_encoders_are_read_in_parts(
    served: bool, saved: tuple[str, str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(save_encoder(tmp_path, *saved))
    given = {"name": name, "dtype": "bfloat16", "lora": {"rank": 2}}
    if served:
        compare_with_the_whole(AdaptedClassifier(**given), 2, monkeypatch)
    else:
        model = SequenceClassifier(head=1, tail=1, learns=["head", "tail"], **given)
        compare_with_the_whole(model, 2, monkeypatch)


def test_a_client_of_an_encoder_needs_none_of_the_trunks_files(tmp_path: Path) -> None:
    model = SequenceClassifier(
        name=str(save_encoder(tmp_path, "bert", "classes")), head=1, tail=1, learns=["tail"]
    )
    READ.clear()
    make(model, "trunk")
    of_trunk = set(READ)
    assert all(".layer." in name for name in of_trunk)
    READ.clear()
    make(model, "head", "tail")
    assert not of_trunk & set(READ)


def test_older_names_are_those_that_the_library_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    save_encoder(tmp_path, "bert", "classes")
    for file in tmp_path.glob("*.safetensors"):
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, metadata={"format": "pt"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("LayerNorm.weight", "LayerNorm.gamma"))
    model = SequenceClassifier(name=str(tmp_path), head=1, tail=1)
    compare_with_the_whole(model, 2, monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_t5_is_read_without_its_decoder(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AdaptedClassifier(
        name=str(save_encoder(tmp_path, "t5", "")), dtype=dtype, lora={"rank": 2}
    )
    READ.clear()
    compare_with_the_whole(model, 2, monkeypatch)
    assert not any(name.startswith("decoder") for name in READ)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_are_read_in_parts(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    if family == "mixtral":
        config = MixtralConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=2, num_key_value_heads=2, num_local_experts=4,
        )  # fmt: skip
        torch.default_generator.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="40KB")
    else:
        save(folder, family, tied=False)
    model = cut(folder, "bfloat16", learns=["head"], lora={"rank": 2})
    compare_with_the_whole(model, VOCABULARY, monkeypatch)


def list_frozen(parts: ClientParts) -> dict[int, int]:
    """Return the bytes of frozen weights by their place in memory."""
    assert parts.tail is not None
    weights = [*parts.head.parameters(), *parts.tail.parameters()]
    return {w.data_ptr(): w.nbytes for w in weights if not w.requires_grad}


@pytest.mark.parametrize("start", ["same", "own"])
def test_clients_share_frozen_weights_and_hold_no_trunk(start: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "llama", tied=False)
    given = parse(
        {
            "data": {"source": {"kind": "python_docs", "length": LENGTH}},
            "model": {
                "kind": "causal_lm",
                "name": str(folder),
                "head": 1,
                "tail": 1,
                "dtype": "bfloat16",
                "learns": ["head", "tail"],
                "lora": {"rank": 2},
            },
            "clients": {"count": 3, "heads": "per_client", "start": start},
        }
    )
    info = DataInfo((LENGTH,), VOCABULARY, texts=True)
    owners = Ownership(given, info, CPU, with_trunk=False)
    assert all(weight.is_meta for weight in owners.model.trunk.parameters())
    clients = [owners.build_client_parts(number) for number in range(3)]
    first, *others = map(list_frozen, clients)
    assert all(other == first for other in others)
    embeddings, layer = VOCABULARY * 32, 4 * 32 * 32 + 3 * 32 * 96 + 2 * 32
    assert sum(first.values()) == 2 * (2 * embeddings + 2 * layer + 32)
    adapters = [{w.data_ptr() for w in c.head.parameters() if w.requires_grad} for c in clients]
    assert not adapters[0] & adapters[1]


def test_a_copy_shares_what_is_frozen_alone() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[0].requires_grad_(False)
    made = copy_learning(net)
    assert made[0].weight is net[0].weight
    assert made[1].weight is not net[1].weight
    assert torch.equal(made[1].weight, net[1].weight)


def test_a_type_that_a_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "_computes", lambda dtype, device: dtype != torch.float16)
    sizes = {"family": "llama", "width": 16}
    frozen.refuse_missing_dtype(CausalLM(sizes=sizes, dtype="bfloat16"), CPU)
    with pytest.raises(ScenarioError) as caught:
        frozen.refuse_missing_dtype(CausalLM(sizes=sizes, dtype="float16", learns=[]), CPU)
    assert caught.value.field == "model.dtype"
    assert says(str(caught.value), "got float16 ... float32, bfloat16")


@pytest.mark.parametrize(
    ("model", "allowed"),
    [
        ({"learns": []}, True),
        ({"learns": ["tail"]}, True),
        ({"learns": ["trunk", "tail"]}, True),
        ({"learns": ["head", "tail"], "trunk": "skipped"}, True),
        ({}, True),
        ({"learns": ["head"]}, False),
        ({"learns": ["head", "tail"]}, False),
        ({"learns": ["tail"], "lora": {"rank": 2}}, False),
    ],
)
def test_gradients_do_not_pass_through_float16(model: dict[str, object], allowed: bool) -> None:
    sizes = {"family": "llama", "width": 16}
    if allowed:
        CausalLM(sizes=sizes, dtype="float16", **model)
        return
    with pytest.raises(ScenarioError) as caught:
        CausalLM(sizes=sizes, dtype="float16", **model)
    assert caught.value.field == "model.dtype"


def test_an_apis_gradients_do_not_pass_through_float16() -> None:
    sizes = {"family": "llama", "width": 16}
    AdaptedClassifier(sizes=sizes, dtype="float16", learns=["tail"])
    with pytest.raises(ScenarioError) as caught:
        AdaptedClassifier(sizes=sizes, dtype="float16")
    assert caught.value.field == "model.dtype"
