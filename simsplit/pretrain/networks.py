"""Small networks of transformers' architectures, with fresh weights."""

import math
from typing import TYPE_CHECKING

from simsplit.pretrain.tiers import PretrainConfig
from simsplit.pretrain.tokens import END, PAD, START
from simsplit.seeds import isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SPREAD = 0.7
"""Of weights at first, times the root of the width: the usual 0.02 is for widths of a thousand."""


def fresh_model(config: PretrainConfig) -> "PreTrainedModel":
    """A causal language model on the CPU, its weights drawn from the seed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = _gpt2(config) if config.family == "gpt2" else _gated(config)
    ids = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    common = {"vocab_size": config.vocabulary, "tie_word_embeddings": False}
    spread = {"initializer_range": _SPREAD / math.sqrt(config.width)}
    with isolated(config.seed, "pretrain", "model"):
        made = AutoConfig.for_model(config.family, **shape, **ids, **common, **spread)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    return model


def _gated(config: PretrainConfig) -> dict[str, int]:
    """Llama's and Qwen3's fields; a gated MLP has three matrices, so each is two thirds of 4 d."""
    return {
        "hidden_size": config.width,
        "intermediate_size": -(-config.width * 8 // 3 // 8) * 8,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "max_position_embeddings": config.context,
    }


def _gpt2(config: PretrainConfig) -> dict[str, float]:
    """GPT-2's fields. No dropout: text is seen about once."""
    return {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
