"""Each family of language models is cut exactly: as the whole model, in texts past its window."""

from functools import cache

import pytest
import torch
from families import FAMILIES, SIZES, WINDOW

from simsplit.models.families import get_token_reader
from simsplit.models.text_model import add_adapters
from simsplit.models.transformer import Cut, copy_segment, get_layers
from simsplit.seeds import isolate, rng_for

transformers = pytest.importorskip("transformers")
LENGTH = 2 * WINDOW + 3
EVERY = pytest.mark.parametrize("family", FAMILIES)
OWNERS = ("head", "trunk", "tail")


@cache
def whole(family):
    config = transformers.AutoConfig.for_model(family, **SIZES, **FAMILIES[family].options)
    with isolate(0, "whole", family), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for weight in model.parameters():  # norms and biases too, lest a forgotten one goes unseen
            weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def cut(family):
    model = whole(family)
    reader = get_token_reader(model)
    return [copy_segment(model, owner, Cut(1, 1), reader).eval() for owner in OWNERS]


def through(parts, ids, mask=None, pasts=(None, None, None)):
    x = ids
    for part, past in zip(parts, pasts, strict=True):
        x = part(x, mask, past)
    return x


def tokens():
    return torch.randint(3, 50, (3, LENGTH), generator=rng_for(0, "tokens"))


def padding():
    """Mark the real tokens of three texts: the second is padded on the left, the third right."""
    real = torch.ones(3, LENGTH, dtype=torch.bool)
    real[1, :4], real[2, -3:] = False, False
    return real


@EVERY
@torch.no_grad()
def test_logits_are_the_whole_models(family):
    parts, model, ids = cut(family), whole(family), tokens()
    assert torch.equal(through(parts, ids), model(ids).logits)
    real = padding()
    places = (real.long().cumsum(-1) - 1).clamp(min=0)
    expected = model(ids, attention_mask=real.long(), position_ids=places).logits
    assert torch.equal(through(parts, ids, real)[real], expected[real])


@EVERY
@torch.no_grad()
def test_a_cache_for_each_segment_gives_what_the_whole_text_gives(family):
    parts, ids, real = cut(family), tokens(), padding()
    pasts = [transformers.DynamicCache() for _ in parts]
    expected = through(parts, ids, real)
    got = [through(parts, ids[:, :WINDOW], real[:, :WINDOW], pasts)]
    for at in range(WINDOW, LENGTH):
        got.append(through(parts, ids[:, at : at + 1], real[:, : at + 1], pasts))
    torch.testing.assert_close(torch.cat(got, 1)[real], expected[real], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "phi", "starcoder2", "gemma3_text", "opt"])
@torch.no_grad()
def test_training_draws_the_whole_models_dropout(family):
    parts, model, ids = cut(family), whole(family), tokens()
    try:
        with isolate(0, "dropout"):
            expected = model.train()(ids).logits
    finally:
        model.eval()
    with isolate(0, "dropout"):
        got = through([part.train() for part in parts], ids)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("family", ["granite", "gemma3_text", "gpt_oss"])
def test_gradients_are_the_whole_models(family):
    parts, model, ids = cut(family), whole(family), tokens()
    model.zero_grad()
    model(ids).logits.square().mean().backward()
    through(parts, ids).square().mean().backward()
    mine = [layer for part in parts for layer in get_layers(part)]
    theirs = dict(model.named_parameters())
    for number, layer in enumerate(mine):
        for name, weight in layer.named_parameters():
            expected = theirs[f"model.layers.{number}.{name}"].grad
            torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["granite", "gemma3_text"])
def test_adapters_are_the_whole_models(family):
    peft = pytest.importorskip("peft")
    parts, ids = cut(family), tokens()
    for part in parts:
        add_adapters(part, {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["q_proj"]})
    mine = [layer.self_attn.q_proj for part in parts for layer in get_layers(part)]
    model = whole.__wrapped__(family)
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=2, lora_alpha=4.0, target_modules=["q_proj"]), model
    )
    with torch.no_grad():
        for own, layer in zip(mine, model.model.layers, strict=True):
            own.lora_B["default"].weight.normal_(generator=rng_for(0, "adapters"))
            layer.self_attn.q_proj.load_state_dict(own.state_dict())
        assert torch.equal(through(parts, ids), model.eval()(ids).logits)


@pytest.mark.parametrize("family", ["granite", "gemma3_text"])
@torch.no_grad()
def test_texts_are_written_as_by_the_whole_model(family):
    parts, ids = cut(family), tokens()[:1, :WINDOW]
    options = {"max_new_tokens": WINDOW, "do_sample": False, "eos_token_id": None}
    mask = torch.ones_like(ids)
    expected = whole(family).generate(ids, attention_mask=mask, **options)[0]
    pasts, read = [transformers.DynamicCache() for _ in parts], ids
    for _ in range(WINDOW):
        after = through(parts, read, None, pasts)[:, -1:].argmax(-1)
        ids, read = torch.cat([ids, after], 1), after
    assert torch.equal(ids[0], expected)
