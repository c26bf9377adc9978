"""A cut encoder is the whole one: logits and gradients, whatever the padding, saved or drawn."""

import pytest
import torch
import transformers
from builders import run_to_end, scenario

from simsplit.data.samples import IGNORED
from simsplit.errors import ScenarioError
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.whole import Sizes, build_config
from simsplit.results import Run
from simsplit.seeds import isolate, rng_for

FAMILIES = pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
LENGTHS = torch.tensor([11, 4, 7])


def sizes(family: str) -> Sizes:
    return Sizes(family=family, width=16, layers=5, context=32)


def save_model(family: str, path, kind=transformers.AutoModelForSequenceClassification, **changes):
    """Save a model, and return it."""
    config = build_config(sizes(family))
    config.num_labels = 3
    for name, value in changes.items():
        setattr(config, name, value)
    with isolate(0, "saved"):
        model = kind.from_config(config)
        for weight in model.parameters():  # biases, too, are no zeros
            weight.data += 0.1 * torch.randn(weight.shape)
    model.save_pretrained(path)
    return model.eval()


def pad_ids() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(11) < LENGTHS[:, None]
    ids = torch.randint(3, 250, (3, 11), generator=rng_for(0, "tokens"))
    return ids.masked_fill(~mask, build_config(sizes("bert")).pad_token_id), mask


def through(made, ids, mask):
    return made.tail(made.trunk(made.head(ids, mask), mask), mask)


@FAMILIES
@pytest.mark.parametrize(("head", "tail"), [(1, 1), (0, 2), (3, 0)])
def test_logits_and_gradients_are_the_whole_models(family, head, tail, tmp_path):
    model = save_model(
        family, tmp_path, **({"conv_kernel_size": 3} if family == "deberta-v2" else {})
    )
    config = SequenceClassifier(name=str(tmp_path), head=head, tail=tail)
    made = config.build((11,), 3, seed=5)
    for part in (made.head, made.trunk, made.tail):
        part.eval()
    ids, mask = pad_ids()
    out, whole = through(made, ids, mask), model(ids, attention_mask=mask.long()).logits
    assert torch.equal(out[:, 0], whole)
    labels = torch.full((3, 11), IGNORED)
    labels[:, 0] = torch.tensor([0, 2, 1])
    made.loss(out, labels).backward()
    torch.nn.functional.cross_entropy(whole, labels[:, 0]).backward()
    embedding = model.base_model.embeddings.word_embeddings.weight.grad
    assert torch.equal(made.head.tokens.weight.grad, embedding)


@FAMILIES
def test_padding_changes_nothing(family):
    made = SequenceClassifier(sizes=sizes(family), head=2, tail=2).build((11,), 3, seed=0)
    ids, mask = pad_ids()
    with torch.no_grad():
        out = through(made, ids, mask)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = through(made, ids[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(out[row, 0], alone[0, 0])


def test_a_pooler_is_the_models_where_it_is_saved_and_classes_are_new(tmp_path):
    model = save_model("bert", tmp_path, transformers.AutoModel)
    config = SequenceClassifier(name=str(tmp_path), head=1, tail=1)
    one, other = (config.segment("tail", (11,), 4, seed).reader for seed in (0, 1))
    assert torch.equal(one.pooler.dense.weight, model.pooler.dense.weight)
    assert one.classifier.weight.shape == (4, 16)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    again = config.segment("tail", (11,), 4, 0).reader
    assert torch.equal(one.classifier.weight, again.classifier.weight)


@FAMILIES
def test_adapters_start_as_nothing_and_the_classes_learn_beside_them(family):
    fields = {"sizes": sizes(family), "head": 1, "tail": 1}
    plain = SequenceClassifier(**fields).build((11,), 3, seed=0)
    made = SequenceClassifier(**fields, lora={"rank": 2}).build((11,), 3, seed=0)
    ids, mask = pad_ids()
    out = through(made, ids, mask)
    assert torch.equal(out, through(plain, ids, mask))
    out.square().mean().backward()
    tail = {name for name, weight in made.tail.named_parameters() if weight.requires_grad}
    assert any(name.startswith("reader.") for name in tail)
    assert all("lora_" in name or name.startswith("reader.") for name in tail)
    assert all("lora_" in n for n, w in made.trunk.named_parameters() if w.requires_grad)


def test_an_encoder_predicts_no_tokens():
    with pytest.raises(ScenarioError, match=r"model\.kind: got causal_lm.*sequence_classifier"):
        CausalLM(sizes=sizes("bert"), head=1, tail=1).build((11,), 1, 0)


MODEL = {"kind": "sequence_classifier", "sizes": {"family": "bert", "layers": 4}}
TEXTS = {"source": {"kind": "python_docs", "length": 16, "topics": ["email", "logging"]}}


def of_texts(**fields):
    texts = {"data": {**TEXTS, "train_samples": 24, "test_samples": 12}}
    return scenario(**texts, model={**MODEL, "head": 1, "tail": 1}, **fields)


@pytest.mark.slow
def test_its_mask_crosses_and_it_trains(tmp_path):
    run_to_end(of_texts(), tmp_path)
    wire = Run.load(tmp_path).wire
    trained = wire[wire["phase"] == "train"].groupby("leg")["bytes"].sum()
    values = 4 * 32  # bytes of a token; its bit of the mask crosses as one more
    assert trained["smashed"] * values == trained["smashed_grad"] * (values + 1)


def test_what_mixes_texts_is_refused_with_the_mask_that_crosses():
    given = {"method": [{"kind": "naive_mix"}]}
    with pytest.raises(ScenarioError, match=r"method.0.kind: naive_mix.*mask"):
        of_texts(**given)


@FAMILIES
def test_a_trunk_that_is_left_out_hands_back_what_it_is_given(family):
    config = SequenceClassifier(sizes=sizes(family), head=1, tail=1, trunk="skipped")
    states = torch.rand(3, 11, 16, generator=rng_for(0, "states"))
    trunk = config.segment("trunk", (11,), 3, 0)
    assert torch.equal(trunk(states, pad_ids()[1]), states)
    assert not list(trunk.parameters()) or family == "deberta-v2"
