"""Layers below the lowest adapters are computed once a text, and change no figure."""

import pytest
import torch
from builders import run_to_end
from gists import says
from pace import quick
from texts import LORA, api_scenario

from simsplit.errors import ScenarioError
from simsplit.models import adapted, lower_layers
from simsplit.results import Run
from simsplit.seeds import rng_for

TOP = {
    "bert": ["layer.2.attention.self.query", "layer.2.attention.self.value"],
    "roberta": ["layer.2.attention.self.query", "layer.2.output.dense"],
    "llama": ["layers.2.self_attn.q_proj"],
    "qwen3": ["layers.2.self_attn.q_proj"],
    "gpt2": ["h.2.attn.c_attn"],
}
LENGTH = 12


def build_trunk(path, family, targets):
    lora = {"rank": 2, "alpha": 4, "targets": targets}
    given = api_scenario(path, family, model={"sizes": {"layers": 3}, "lora": lora})
    return given.model.build((LENGTH,), 2, given.seed).trunk


def draw_texts(count=5):
    rng = rng_for(3)
    ids = torch.randint(4, 50, (count, LENGTH), generator=rng)
    mask = torch.arange(LENGTH) < torch.tensor([LENGTH, 3, 7, 1, 9])[:count, None]
    return ids, mask


def draw_adapters(trunk, seed=0):
    drawn = 0.3 * torch.randn(2, trunk.numbers, generator=rng_for(seed))
    return drawn.requires_grad_()


@pytest.mark.parametrize("family", quick([*TOP], "bert", "llama"))
def test_states_and_gradients_are_those_of_the_whole_model(family, tmp_path):
    trunk, texts = build_trunk(tmp_path, family, TOP[family]), draw_texts()
    assert trunk.lower.count == 2
    results = []
    for lower in (trunk.lower, None):
        trunk.lower, adapters = lower, draw_adapters(trunk)
        states = trunk(adapters, *texts)
        states.square().sum().backward()
        results.append((states.detach(), adapters.grad))
    for kept, plain in zip(*results, strict=True):
        torch.testing.assert_close(kept, plain, rtol=1e-4, atol=1e-5)
    assert results[0][1].abs().max() > 0


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_what_a_text_gives_does_not_depend_on_the_texts_before_it(family, tmp_path):
    one, other = (build_trunk(tmp_path / name, family, TOP[family]) for name in "ab")
    (ids, mask), adapters = draw_texts(), draw_adapters(one).detach()
    lower_layers._open_states.cache_clear()
    one(adapters, ids[2:4], mask[2:4])
    results = [one(adapters, ids, mask)]
    other.lower.kept = lower_layers.KeptStates()
    results.append(other(adapters, ids, mask))
    assert torch.equal(*results)


def test_runs_of_one_transformer_share_what_is_kept_and_others_do_not(tmp_path):
    one, same = (build_trunk(tmp_path / name, "bert", TOP["bert"]) for name in "ab")
    assert one.lower.kept is same.lower.kept
    assert build_trunk(tmp_path / "c", "llama", TOP["llama"]).lower.kept is not one.lower.kept


def test_a_text_passes_the_lower_layers_once(tmp_path):
    lower_layers._open_states.cache_clear()
    trunk, texts = build_trunk(tmp_path, "bert", TOP["bert"]), draw_texts()
    passes = []
    trunk.lower.layers[0].register_forward_hook(lambda *_: passes.append(1))
    for seed in range(3):
        trunk(draw_adapters(trunk, seed), *texts)
    trunk(torch.empty(0, 0), *texts)  # without adapters
    assert len(passes) == len(texts[0])


def test_states_beyond_the_limit_are_computed_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lower_layers, "MOST_BYTES", 0)
    lower_layers._open_states.cache_clear()
    trunk, texts = build_trunk(tmp_path, "bert", TOP["bert"]), draw_texts()
    adapters = draw_adapters(trunk).detach()
    assert torch.equal(trunk(adapters, *texts), trunk(adapters, *texts))
    assert not trunk.lower.kept.states


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", ["query"]),
        ("llama", "all-linear"),
        ("deberta-v2", ["layer.2.attention.self.query_proj"]),
        ("t5", ["block.2.layer.0.SelfAttention.q"]),
    ],
)
def test_nothing_is_kept_where_all_layers_learn_or_share_more_than_states(
    family, targets, tmp_path
):
    assert build_trunk(tmp_path, family, targets).lower is None


def test_ends_of_paths_name_layers_as_wholes(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        build_trunk(tmp_path, "bert", ["ayer.2.attention.self.query"])
    assert says(
        str(caught.value), "model.lora.targets: ... ayer.2.attention.self.query ... dense ... value"
    )


def test_a_run_and_its_weights_are_as_without(tmp_path, monkeypatch):
    given = api_scenario(
        tmp_path,
        "bert",
        model={"sizes": {"layers": 3}, "lora": {**LORA, "targets": TOP["bert"]}},
        clients={"count": 1},
        schedule={"rounds": 2},
        attacks=[{"kind": "spectral", "views": ["features", "shift"]}],
        targets={"count": 24},
    )
    run_to_end(given, tmp_path / "kept")
    monkeypatch.setattr(adapted, "find_lower_layers", lambda *_: None)
    run_to_end(given, tmp_path / "plain")
    kept, plain = (Run.load(tmp_path / name) for name in ("kept", "plain"))
    for name in ("train_loss", "test_accuracy"):
        assert kept.rounds[name].tolist() == pytest.approx(plain.rounds[name].tolist(), rel=1e-4)
    assert kept.labels["value"].tolist() == pytest.approx(plain.labels["value"].tolist(), abs=0.02)
