"""A cut that is not the whole model is refused when the model is loaded, by how much it differs."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, SIZES
from gists import says

from simsplit.assembly.exporting import convert_to_transformers
from simsplit.errors import ScenarioError
from simsplit.models import exactness
from simsplit.models.exactness import compare, require_exact_cut, shrink
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.whole import Sizes, build_config
from simsplit.seeds import isolate

transformers = pytest.importorskip("transformers")


def config_of(family, **options):
    small = FAMILIES[family].options if family in FAMILIES else {}
    return transformers.AutoConfig.for_model(family, **(SIZES | small | options))


def saved(folder, family, **options):
    with isolate(0, "saved"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(family, **options))
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _forget():
    """Compare each configuration anew."""
    exactness._MEASURED.clear()
    yield
    exactness._MEASURED.clear()


def test_a_family_that_is_built_otherwise_is_refused_by_how_much_it_differs(tmp_path):
    """Nanochat has a norm after its embeddings, of which nothing here knows."""
    name = saved(tmp_path, "nanochat", num_key_value_heads=1, intermediate_size=24)
    with pytest.raises(ScenarioError) as caught:
        CausalLM(name=name, head=1, tail=1).build((32,), 1, seed=0)
    assert says(str(caught.value), "scenario.model.name: nanochat ... differ")
    apart, largest = (float(each) for each in re.findall(r"\d+\.\d+", str(caught.value)))
    assert 0.1 < apart < 2 * largest


@pytest.mark.parametrize(
    ("family", "part"), [("granite", "get_token_reader"), ("mistral", "copy_segment")]
)
def test_a_forgotten_scale_or_window_is_found(family, part, monkeypatch):
    def forget_scale(model):
        return model.get_output_embeddings()

    def forget_window(model, owner, cut, reader):
        segment = copied(model, owner, cut, reader)
        blocks = getattr(segment, "blocks", segment)
        blocks.kinds = ("full_attention",) * len(blocks.kinds)
        return segment

    copied = exactness.copy_segment
    wrong = {"get_token_reader": forget_scale, "copy_segment": forget_window}[part]
    monkeypatch.setattr(exactness, part, wrong)
    with pytest.raises(ScenarioError) as caught:
        require_exact_cut(config_of(family, sliding_window=4096), "model.sizes")
    assert says(str(caught.value), f"scenario.model.sizes: {family} ... differ")


@pytest.mark.parametrize(
    ("family", "gist"),
    [
        ("bloom", "model.name: ... BloomForCausalLM ... allowed"),
        ("olmo_hybrid", "model.name: ... linear_attention ... allowed: full_attention"),
        (
            "gemma3",
            "model.name: gemma3 ... text_config, vision_config ... allowed",
        ),
    ],
)
def test_a_family_without_known_parts_is_refused_by_the_name(family, gist):
    with pytest.raises(ScenarioError) as caught:
        require_exact_cut(transformers.AutoConfig.for_model(family), "model.name")
    assert says(str(caught.value), f"scenario.{gist}")


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3", "qwen3_moe", "opt"])
def test_a_model_of_any_size_is_compared_by_a_small_copy_with_all_kinds_of_layers(family):
    whole = transformers.AutoConfig.for_model(family)
    small = shrink(whole)
    kinds = set(getattr(whole, "layer_types", None) or ())
    assert set(getattr(small, "layer_types", None) or ()) == kinds
    with isolate(0, "small"):
        model = transformers.AutoModelForCausalLM.from_config(small)
    assert model.num_parameters() < 300_000
    assert compare(model).largest == 0
    assert whole.num_hidden_layers > small.num_hidden_layers >= 4


def test_a_configuration_is_compared_once_and_draws_nothing(monkeypatch):
    compared = []

    def count(model):
        compared.append(model)
        return compare(model)

    monkeypatch.setattr(exactness, "compare", count)
    before = torch.get_rng_state()
    for _ in range(2):
        require_exact_cut(config_of("llama"), "model.name")
    assert len(compared) == 1
    assert torch.equal(torch.get_rng_state(), before)
    require_exact_cut(config_of("llama", rms_norm_eps=0.1), "model.name")
    assert len(compared) == 2


@pytest.mark.parametrize("family", ["granite", "gemma2", "opt"])
def test_what_was_trained_in_segments_is_put_back_into_the_whole(family, tmp_path):
    config = CausalLM(name=saved(tmp_path, family), head=1, tail=1)
    made = config.build((32,), 1, seed=0)
    parts = {"head": made.head, "trunk": made.trunk, "tail": made.tail}
    with torch.no_grad(), isolate(0, "trained"):
        for part in parts.values():
            part.eval()
            for weight in part.parameters():
                weight.add_(torch.randn(weight.shape) * 0.3)
    trained = SimpleNamespace(scenario=SimpleNamespace(model=config), **parts)
    whole = convert_to_transformers(trained).eval()
    ids = torch.arange(3, 33).view(2, 15)
    with torch.no_grad():
        assert torch.equal(whole(ids).logits, made.tail(made.trunk(made.head(ids))))


def test_a_model_of_experts_can_be_drawn_by_its_sizes():
    config = CausalLM(sizes=Sizes(family="qwen3_moe", width=16, layers=4), head=1, tail=1)
    made = config.build((32,), 1, seed=0)
    out = made.tail(made.trunk(made.head(torch.arange(20).view(2, 10))))
    assert out.shape == (2, 10, 259)
    assert made.trunk.layers[0].mlp.experts.num_experts == 8


def encoder_of(family, **options):
    """Return the configuration of a small encoder."""
    small = build_config(Sizes(family=family, width=16, layers=3, vocabulary=300, context=40))
    for name, value in options.items():
        setattr(small, name, value)
    return small


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_encoders_are_equal_to_the_whole_model_in_all_three_runs(family):
    config = encoder_of(family, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    require_exact_cut(config, "model.name")
    with isolate(0, "small"):
        model = transformers.AutoModelForSequenceClassification.from_config(shrink(config))
    assert compare(model).is_none


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_encoder_with_a_causal_mask_is_refused(family, tmp_path):
    """Its cut has none: padded logits differed by .1 to .2, and nothing said so."""
    config = encoder_of(family, is_decoder=True)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        SequenceClassifier(name=str(tmp_path), head=1, tail=1).build((32,), 2, seed=0)
    assert says(
        str(caught.value), f"scenario.model.name: {family} ... differ ... allowed: ... bert"
    )


def leave_out_mask(segment, x, mask=None):
    return type(segment).forward(segment, x)


@pytest.mark.parametrize("forgotten", ["mask", "positions"])
def test_a_forgotten_mask_of_an_encoder_is_found(forgotten, monkeypatch):
    def copy_wrongly(model, owner, cut, reader):
        segment = copied(model, owner, cut, reader)
        if forgotten == "mask":
            segment.forward = partial(leave_out_mask, segment)
        elif owner == "head":
            torch.nn.init.zeros_(segment.embeddings.position_embeddings.weight)
        return segment

    copied = exactness.copy_encoder_segment
    monkeypatch.setattr(exactness, "copy_encoder_segment", copy_wrongly)
    with pytest.raises(ScenarioError) as caught:
        require_exact_cut(encoder_of("bert"), "model.name")
    assert says(str(caught.value), "scenario.model.name: bert ... differ")


@pytest.mark.parametrize(
    ("family", "gist"),
    [
        ("gemma3", "gemma3 ... text_config, vision_config"),
        ("llava", "llava ... text_config"),
        ("distilbert", "distilbert"),
        ("albert", "albert"),
        ("mpnet", "mpnet"),
        ("mamba", "mamba ... max_position_embeddings"),
    ],
)
def test_another_family_is_refused_by_its_name_with_what_is_allowed(family, gist, tmp_path):
    """Before, a user of a classifier read that AutoModelForCausalLM does not know a class."""
    transformers.AutoConfig.for_model(family).save_pretrained(tmp_path)
    for kind in (CausalLM, SequenceClassifier):
        with pytest.raises(ScenarioError) as caught:
            kind(name=str(tmp_path), head=1, tail=1).compute_shapes((32,))
        assert says(
            str(caught.value), f"scenario.model.name: {gist} ... allowed: ... Llama ... bert"
        )
        assert "AutoModel" not in str(caught.value)
        assert "attribute" not in str(caught.value)


def test_an_error_of_the_library_is_no_message(monkeypatch):
    def fail(model):
        raise KeyError("sliding_attention")

    monkeypatch.setattr(exactness, "compare", fail)
    with pytest.raises(ScenarioError) as caught:
        require_exact_cut(config_of("llama"), "model.name")
    assert says(str(caught.value), "model.name: llama ... allowed: ... Llama")
    assert "KeyError" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
