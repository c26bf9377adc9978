"""Where tokens cannot cross one by one, whole texts cross."""

from pathlib import Path

import pytest
from texts import text_scenario
from transformers import LlamaConfig, Phi3Config, PreTrainedConfig

from simsplit.errors import ScenarioError
from simsplit.models.whole import find_cache_limit
from simsplit.scenario.session_rules import writes_in_sessions

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 16,
}
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}


def save(folder: Path, config: PreTrainedConfig) -> str:
    config.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def longrope(tmp_path: Path) -> str:
    special = {"pad_token_id": 0, "eos_token_id": 2, "original_max_position_embeddings": 16}
    return save(tmp_path / "phi3", Phi3Config(**SIZES, **special, rope_parameters=LONGROPE))


@pytest.mark.parametrize(("length", "cached"), [(16, True), (17, False)])
def test_texts_that_outgrow_the_angles_of_their_caches_cross_whole(
    longrope, tmp_path, length, cached
):
    model = {"kind": "causal_lm", "name": longrope, "head": 1, "tail": 1}
    long = {"source": {"length": length}}
    assert writes_in_sessions(text_scenario(tmp_path, model=model, data=long)) is cached
    asked = {"model": model, "data": long, "evaluate": {"sessions": True}}
    if not cached:
        with pytest.raises(ScenarioError, match=r"evaluate.sessions.*length is 17.*16"):
            text_scenario(tmp_path, **asked)


def test_other_models_texts_go_on_from_caches_at_any_length(tmp_path):
    name = save(tmp_path / "llama", LlamaConfig(**SIZES))
    model = {"kind": "causal_lm", "name": name, "head": 1, "tail": 1}
    assert writes_in_sessions(text_scenario(tmp_path, model=model, data={"source": {"length": 64}}))


def test_a_model_that_is_not_here_is_not_asked_for():
    """Scenarios are checked without a network, and before a model is made."""
    assert find_cache_limit("models/none-of-this-name", None) is None
    assert find_cache_limit("/no/such/folder", None) is None
