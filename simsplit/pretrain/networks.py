"""This module builds small networks of transformers' architectures, with random weights."""

import math
from typing import TYPE_CHECKING

from simsplit.pretrain.tiers import PretrainConfig
from simsplit.pretrain.tokenizer import END, PAD, START
from simsplit.seeds import isolate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SPREAD = 0.7
"""Standard deviation of the initial weights, times the root of the width. The usual 0.02 is meant
for widths of about a thousand."""


def build_model(config: PretrainConfig) -> "PreTrainedModel":
    """Build a causal language model on the CPU, with weights drawn by the config's seed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = _shape_gpt2(config) if config.family == "gpt2" else _shape_gated(config)
    ids = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    common = {"vocab_size": config.vocabulary, "tie_word_embeddings": False}
    spread = {"initializer_range": _SPREAD / math.sqrt(config.width)}
    with isolate(config.seed, "pretrain", "model"):
        made = AutoConfig.for_model(config.family, **shape, **ids, **common, **spread)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    return model


def _shape_gated(config: PretrainConfig) -> dict[str, int]:
    """Return the fields of Llama and Qwen3.

    A gated MLP has three matrices instead of two, so each has two thirds of the usual width 4 d.
    """
    return {
        "hidden_size": config.width,
        "intermediate_size": -(-config.width * 8 // 3 // 8) * 8,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "max_position_embeddings": config.context,
    }


def _shape_gpt2(config: PretrainConfig) -> dict[str, float]:
    """Return the fields of GPT-2, without dropout, since text is seen about once."""
    return {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
