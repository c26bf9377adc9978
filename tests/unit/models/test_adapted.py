"""A transformer that is served whole: from a folder, without dropout, read at a real token."""

import pytest
import torch
import transformers

from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.whole import Sizes, build_config
from simsplit.seeds import isolate, rng_for

DROPOUT = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "roberta": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "deberta-v2": ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout"),
    "t5": ("dropout_rate", "classifier_dropout"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "llama": ("attention_dropout",),
    "qwen3": ("attention_dropout",),
}
IDS = torch.randint(3, 250, (3, 9), generator=rng_for(0, "tokens"))


def save_model(family: str, path) -> torch.nn.Module:
    """Save a model, with dropout wherever the family has some."""
    config = build_config(Sizes(family=family, width=16, layers=2, context=32))
    for name in DROPOUT[family]:
        setattr(config, name, 0.3)
    with isolate(0, "saved"):
        kind = transformers.T5EncoderModel if family == "t5" else transformers.AutoModel
        model = kind.from_config(config) if family != "t5" else kind(config)
    model.save_pretrained(path)
    return model.eval()


def call_trunk(made, ids, mask) -> torch.Tensor:
    with torch.no_grad():
        return made.trunk(made.head(), ids, mask)


@pytest.mark.parametrize("family", DROPOUT)
def test_a_folders_model_gives_its_own_states_and_the_same_ones_twice(family, tmp_path):
    whole = save_model(family, tmp_path)
    made = AdaptedClassifier(name=str(tmp_path), lora={"rank": 2}).build((9,), 3, seed=0)
    for part in (made.head, made.trunk, made.tail):
        part.train()
    mask = torch.ones_like(IDS)
    one, other = call_trunk(made, IDS, mask), call_trunk(made, IDS, mask)
    assert torch.equal(one, other)
    assert torch.equal(made.tail(one), made.tail(one))
    place = 0 if family in ("bert", "roberta", "deberta-v2") else -1
    with torch.no_grad():
        expected = whole(input_ids=IDS, attention_mask=mask).last_hidden_state[:, place]
    assert torch.equal(one[:, 0], expected)


@pytest.mark.parametrize(("family", "first"), [("bert", True), ("llama", False)])
def test_a_class_is_read_at_a_real_token_on_whichever_side_padding_is(family, first):
    sizes = Sizes(family=family, width=16, layers=2, context=32)
    made = AdaptedClassifier(sizes=sizes).build((9,), 3, seed=0)
    states = torch.rand(2, 9, 16)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4], mask[1, 7:] = 0, 0
    read = made.trunk.pool(states, mask)
    places = (4, 0) if first else (8, 6)
    assert torch.equal(read, torch.stack([states[row, place] for row, place in enumerate(places)]))
