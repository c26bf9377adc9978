"""A cut transformer is the whole one: logits and gradients, padded either side, and with caches."""

import pytest
import torch

from simsplit.models.transformer import Cut, copy_segment, use_eager_attention
from simsplit.seeds import isolate, rng_for

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}


def whole(family: str):
    config = {
        "llama": lambda: transformers.LlamaConfig(
            **SIZES, num_key_value_heads=1, intermediate_size=24, max_position_embeddings=64
        ),
        "qwen3": lambda: transformers.Qwen3Config(
            **SIZES,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=64,
        ),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=50,
            n_embd=16,
            n_layer=5,
            n_head=2,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=True,
        ),
    }[family]()
    with isolate(0, "whole", family):
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def segments(model, cut: Cut):
    reader = model.get_output_embeddings()
    return [copy_segment(model, owner, cut, reader).eval() for owner in ("head", "trunk", "tail")]


def through(parts, ids, mask=None, pasts=(None, None, None)):
    x = ids
    for part, past in zip(parts, pasts, strict=True):
        x = part(x, mask, past)
    return x


def tokens(*shape: int):
    return torch.randint(3, 50, shape, generator=rng_for(0, "tokens"))


FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
CUTS = pytest.mark.parametrize("cut", [Cut(1, 1), Cut(2, 2), Cut(0, 4), Cut(3, 0)])


@pytest.mark.slow
@FAMILIES
@CUTS
def test_logits_are_the_whole_models(family, cut):
    model = whole(family)
    ids = tokens(3, 11)
    with torch.no_grad():
        assert torch.equal(through(segments(model, cut), ids), model(ids).logits)


@FAMILIES
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_logits_are_the_whole_models_where_tokens_are_real(family, side):
    model = whole(family)
    ids = tokens(3, 11)
    lengths = torch.tensor([11, 4, 7])
    count = torch.arange(11)
    real = count < lengths[:, None] if side == "right" else count >= 11 - lengths[:, None]
    places = (real.long().cumsum(-1) - 1).clamp(min=0)
    parts = segments(model, Cut(2, 2))
    with torch.no_grad():
        expected = model(ids, attention_mask=real.long(), position_ids=places).logits
        got = through(parts, ids, real)
        assert (got - expected)[real].abs().max() == 0
        if side == "right":  # causal attention never looks at what comes after
            torch.testing.assert_close(through(parts, ids)[real], expected[real])
        else:
            assert (through(parts, ids) - expected)[real].abs().max() > 1e-3


@FAMILIES
def test_gradients_are_the_whole_models(family):
    model = whole(family)
    ids = tokens(2, 9)
    loss = torch.nn.functional.cross_entropy
    loss(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
    parts = segments(model, Cut(2, 1))
    loss(through(parts, ids).flatten(0, 1), ids.flatten()).backward()
    head, trunk, tail = parts
    body = model.base_model
    layers = body.h if family == "gpt2" else body.layers
    ours = [*head.blocks.layers, *trunk.layers, *tail.blocks.layers]
    for mine, theirs in zip(ours, layers, strict=True):
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=2e-7)
    embedded = model.get_input_embeddings().weight.grad
    if family == "gpt2":  # tied in the whole, apart in the segments: their gradients add up
        torch.testing.assert_close(head.tokens.weight.grad + tail.reader.weight.grad, embedded)
        torch.testing.assert_close(head.positions.weight.grad, body.wpe.weight.grad)
    else:
        torch.testing.assert_close(head.tokens.weight.grad, embedded)
        torch.testing.assert_close(tail.reader.weight.grad, model.lm_head.weight.grad)


@FAMILIES
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_for_each_segment_gives_what_the_whole_sequence_gives(family, padded):
    model = whole(family)
    ids = tokens(2, 10)
    mask = None
    if padded:
        mask = torch.arange(10) >= torch.tensor([[0], [3]])
    parts = segments(model, Cut(2, 2))
    pasts = [transformers.DynamicCache() for _ in parts]
    with torch.no_grad():
        expected = through(parts, ids, mask)
        first = through(parts, ids[:, :6], None if mask is None else mask[:, :6], pasts)
        later = [
            through(parts, ids[:, at : at + 1], None if mask is None else mask[:, : at + 1], pasts)
            for at in range(6, 10)
        ]
    assert [past.get_seq_length() for past in pasts] == [10, 10, 10]
    got = torch.cat([first, *later], 1)
    real = torch.ones(2, 10, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(got[real], expected[real], rtol=1e-5, atol=1e-6)


def test_segments_are_copies():
    model = whole("llama")
    (head, *_) = segments(model, Cut(2, 2))
    with torch.no_grad():
        head.tokens.weight.zero_()
    assert model.get_input_embeddings().weight.abs().sum() > 0
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(5))


@FAMILIES
def test_eager_attention_can_be_differentiated_twice(family):
    _, _, tail = segments(whole(family), Cut(1, 2))
    use_eager_attention(tail)
    x = torch.randn(1, 5, 16, generator=rng_for(0, "x"), requires_grad=True)
    (slope,) = torch.autograd.grad(tail(x).square().mean(), x, create_graph=True)
    slope.square().sum().backward()
    assert x.grad.abs().sum() > 0
