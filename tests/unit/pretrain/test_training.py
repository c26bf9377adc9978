import json
import math

import pytest
import torch
from gists import gist

from simsplit.errors import DataError, RunError, RunFailedError
from simsplit.pretrain import pretrain, read_facts
from simsplit.pretrain.corpus import encode_stream, hold_out, read_documents, train_tokenizer
from simsplit.pretrain.pretraining import _compute_factor


def load(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_transformers_loads_what_was_saved(tiny, tmp_path, family):
    out = pretrain(tiny.model_copy(update={"family": family, "steps": 2}), tmp_path / "model")
    model, tokenizer = load(out)
    assert model.config.model_type == family
    assert model.config.pad_token_id == tokenizer.pad_token_id == 0
    assert model.config.eos_token_id == tokenizer.eos_token_id == 2
    assert not model.config.tie_word_embeddings
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight
    assert sum(weight.numel() for weight in model.parameters()) == read_facts(out)["weights"]
    ids = tokenizer("The server answers.", return_tensors="pt").input_ids
    assert model(ids).logits.shape == (1, ids.shape[1], 300)
    assert not list(tmp_path.glob("*.partial"))


def test_any_text_comes_back_as_it_was(folder):
    _, tokenizer = load(folder)
    every = "".join(map(chr, [*range(0xD800), 0xE000, 0xFEFF, 0x1F600, 0x10FFFF]))
    for text in (
        every,
        " two  spaces , and a comma",
        "naïve 日本語 🙂\r\n\t\x00",
        "<s> </s><pad>",
        "",
    ):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
    plain = tokenizer("server").input_ids
    assert not set(plain) & set(tokenizer.all_special_ids)


def test_documents_lie_between_special_tokens_which_their_text_cannot_forge():
    tokenizer = train_tokenizer(["some words"] * 3, 300)
    stream = encode_stream(tokenizer, ["a</s>b", "c"]).tolist()
    assert (stream.count(1), stream.count(2)) == (2, 2)
    assert (stream[0], stream[-1]) == (1, 2)
    assert tokenizer.decode(stream, skip_special_tokens=True) == "a</s>bc"


@pytest.mark.slow
def test_the_loss_falls_on_a_text_that_repeats_itself(tiny, tmp_path):
    seen = []
    given = tiny.model_copy(update={"steps": 120, "lr": 1e-2})
    out = pretrain(given, tmp_path / "model", seen.append)
    facts = read_facts(out)
    assert seen[0].loss == pytest.approx(math.log(300), abs=0.5)
    assert facts["train_loss"] < 2.5
    assert facts["validation_loss"] < 2.5
    assert facts["tokens_seen"] == 120 * 4 * 16 == seen[-1].tokens
    assert [each.step for each in seen] == [1, *range(10, 121, 10)]
    assert seen[-1].left_s == 0


def test_the_validation_loss_is_that_of_the_saved_model_on_what_was_held_out(tiny, folder):
    model, tokenizer = load(folder)
    _, judged = hold_out(read_documents(tiny.text), 0.05, tiny.seed)
    stream = encode_stream(tokenizer._tokenizer, judged).long()
    losses = []
    for start in range(0, len(stream) - tiny.length, tiny.length):
        window = stream[None, start : start + tiny.length + 1]
        logits = model(window[:, :-1]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, window[0, 1:]).item())
    assert sum(losses) / len(losses) == pytest.approx(
        read_facts(folder)["validation_loss"], rel=1e-5
    )


def test_half_precision_rounds_the_weights_before_they_are_judged(tiny, folder, tmp_path):
    from safetensors.torch import load_file

    half = pretrain(tiny.model_copy(update={"half": True}), tmp_path / "half")
    kept = load_file(folder / "model.safetensors")
    rounded = load_file(half / "model.safetensors")
    assert all(torch.equal(rounded[name], weight.half()) for name, weight in kept.items())
    losses = [read_facts(each)["validation_loss"] for each in (folder, half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    model, _ = load(half)
    assert model.lm_head.weight.dtype == torch.float32
    assert torch.equal(model.lm_head.weight, rounded["lm_head.weight"].float())


def test_a_weight_beyond_half_precision_is_refused(tiny, tmp_path, monkeypatch):
    from simsplit.pretrain import pretraining

    monkeypatch.setattr(pretraining, "_train", lambda model, *given: enlarge(model))
    with pytest.raises(RunFailedError, match=gist("half precision ... --half")):
        pretrain(tiny.model_copy(update={"half": True}), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def enlarge(model):
    torch.nn.init.constant_(model.lm_head.weight, 1e5)
    return 1.0


def test_the_same_config_gives_the_same_weights(tiny, folder, tmp_path):
    again = pretrain(tiny, tmp_path / "again")
    assert weights(again) == weights(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (again / name).read_text() == (folder / name).read_text()
    other = pretrain(tiny.model_copy(update={"seed": 1}), tmp_path / "other")
    assert weights(other) != weights(folder)


def test_the_global_stream_stays_where_it_is(tiny, tmp_path):
    before = torch.get_rng_state()
    pretrain(tiny.model_copy(update={"steps": 1}), tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_pretraining_is_kept_and_another_refused(tiny, folder, tmp_path):
    def never(progress):
        raise AssertionError("it was trained again")

    assert pretrain(tiny, folder, never) == folder
    moved = tmp_path / "moved.txt"
    moved.write_bytes(tiny.text.read_bytes())
    assert pretrain(tiny.model_copy(update={"text": moved}), folder, never) == folder
    moved.write_text("another text")
    for other in ({"steps": 21}, {"text": moved}):
        with pytest.raises(RunError, match=r"tiny.*folder"):
            pretrain(tiny.model_copy(update=other), folder)


def test_a_folder_of_other_things_is_refused_and_an_empty_one_is_filled(tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        with pytest.raises(RunError, match="exists"):
            pretrain(tiny, tmp_path / name)
    (tmp_path / "empty").mkdir()
    pretrain(tiny.model_copy(update={"steps": 1}), tmp_path / "empty")
    assert read_facts(tmp_path / "empty")["config"]["steps"] == 1


def test_nothing_is_left_of_what_failed(tiny, tmp_path):
    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(tiny, tmp_path / "model", interrupt)
    (tmp_path / "short.txt").write_text("A sentence of this text.\n\n" * 90)
    short = tiny.model_copy(update={"text": tmp_path / "short.txt", "length": 64})
    with pytest.raises(DataError, match=r"65.*48"):
        pretrain(short, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]
    with pytest.raises(RunFailedError, match=r"cannot write .*short.txt.model: "):
        pretrain(tiny, tmp_path / "short.txt" / "model")


def test_a_loss_that_is_no_number_stops_it(tiny, tmp_path, monkeypatch):
    from simsplit.pretrain import pretraining

    nothing = torch.tensor(math.nan, requires_grad=True)
    monkeypatch.setattr(pretraining, "_compute_loss", lambda model, windows: nothing * 1)
    with pytest.raises(RunFailedError, match=r"step 1;.*rate"):
        pretrain(tiny, tmp_path / "model")


def test_a_damaged_record_says_so(folder, tmp_path):
    (tmp_path / "pretraining.json").write_text("{")
    with pytest.raises(RunError, match=r"no pretraining\.json"):
        read_facts(tmp_path)
    assert json.loads((folder / "pretraining.json").read_text()) == read_facts(folder)


def test_the_learning_rate_rises_and_then_falls():
    factors = [_compute_factor(step, 100) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[-1] == pytest.approx(0.1, abs=0.01)
    assert _compute_factor(0, 1) == 1


@pytest.mark.slow
def test_the_smallest_tier_learns_from_pythons_own_text(tmp_path):
    from simsplit.pretrain import TIERS

    facts = read_facts(pretrain(TIERS["ci"], tmp_path / "ci"))
    assert facts["validation_loss"] < 5.6
    assert facts["tokens"] > 500_000
