"""The families of models that tests cut; the site's tables are made from these lists."""

from typing import Any, NamedTuple

WINDOW = 6
"""The sliding window of the small models: texts of the tests are longer."""
LAYERS = 4
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""The sizes of the small models of the tests."""
_GROUPED = {"num_key_value_heads": 1, "intermediate_size": 24}
_WIDE = _GROUPED | {"head_dim": 8}
_SLIDING = {"sliding_window": WINDOW}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


class CutFamily(NamedTuple):
    """A family of models, and the options of its small model, next to `SIZES`."""

    options: dict[str, Any]
    examples: str
    has: str = ""
    """What differs from Llama where a cut could go wrong."""


FAMILIES = {
    "llama": CutFamily(_GROUPED, "Llama 2 and 3, SmolLM2, TinyLlama"),
    "arcee": CutFamily(_GROUPED, "AFM"),
    "cohere": CutFamily(_GROUPED | {"logit_scale": 0.25}, "Command R", "a scale of logits"),
    "cohere2": CutFamily(
        _WIDE | _SLIDING | _MIXED | {"logit_scale": 0.25},
        "Command R7B",
        "sliding windows in some layers, a scale of logits",
    ),
    "ernie4_5": CutFamily(_WIDE, "ERNIE 4.5"),
    "exaone4": CutFamily(_WIDE | _SLIDING | _MIXED, "EXAONE 4", "sliding windows in some layers"),
    "gemma": CutFamily(_WIDE, "Gemma", "scaled embeddings"),
    "gemma2": CutFamily(
        _WIDE | _SLIDING | _MIXED | {"final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8},
        "Gemma 2",
        "sliding windows in some layers, scaled embeddings, bounded logits",
    ),
    "gemma3_text": CutFamily(
        _WIDE | _SLIDING | _MIXED | {"query_pre_attn_scalar": 8},
        "Gemma 3 (texts alone)",
        "sliding windows with rotary angles of their own in some layers, scaled embeddings",
    ),
    "glm4": CutFamily(_WIDE, "GLM-4"),
    "gpt2": CutFamily({}, "GPT-2", "learned positions, dropout after the embeddings"),
    "gpt_neox": CutFamily(
        {"intermediate_size": 24, "hidden_dropout": 0.1},
        "Pythia, GPT-NeoX",
        "dropout after the embeddings",
    ),
    "gpt_oss": CutFamily(
        _WIDE | _SLIDING | _MIXED | _EXPERTS,
        "gpt-oss",
        "sliding windows in some layers, sinks of attention, experts",
    ),
    "granite": CutFamily(
        _GROUPED
        | {"embedding_multiplier": 3.0, "logits_scaling": 4.0}
        | {"residual_multiplier": 0.5, "attention_multiplier": 0.25},
        "Granite 3",
        "scales of embeddings and logits",
    ),
    "helium": CutFamily(_WIDE, "Helium"),
    "hunyuan_v1_dense": CutFamily(_WIDE, "Hunyuan"),
    "ministral": CutFamily(
        _WIDE | _SLIDING | _MIXED, "Ministral", "sliding windows in some layers"
    ),
    "mistral": CutFamily(_WIDE | _SLIDING, "Mistral 7B", "sliding windows"),
    "mixtral": CutFamily(_WIDE | _SLIDING | _EXPERTS, "Mixtral", "sliding windows, experts"),
    "olmo": CutFamily(_GROUPED, "OLMo"),
    "olmo2": CutFamily(_GROUPED, "OLMo 2"),
    "olmo3": CutFamily(_GROUPED | _SLIDING | _MIXED, "OLMo 3", "sliding windows in some layers"),
    "olmoe": CutFamily(_GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}, "OLMoE", "experts"),
    "opt": CutFamily({"ffn_dim": 24, "word_embed_proj_dim": 16}, "OPT", "learned positions"),
    "phi": CutFamily(
        _GROUPED | {"embd_pdrop": 0.1}, "Phi-1.5, Phi-2", "dropout after the embeddings"
    ),
    "phi3": CutFamily(_GROUPED | _SLIDING, "Phi-3, Phi-4", "sliding windows"),
    "qwen2": CutFamily(_GROUPED, "Qwen2, Qwen2.5"),
    "qwen2_moe": CutFamily(
        _GROUPED
        | {"num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
        "Qwen1.5-MoE",
        "experts",
    ),
    "qwen3": CutFamily(_WIDE, "Qwen3"),
    "qwen3_moe": CutFamily(
        _WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
        "Qwen3-30B-A3B",
        "experts",
    ),
    "seed_oss": CutFamily(_WIDE, "Seed-OSS"),
    "smollm3": CutFamily(_GROUPED, "SmolLM3", "some layers without rotary angles"),
    "stablelm": CutFamily(_GROUPED, "StableLM"),
    "starcoder2": CutFamily(
        _GROUPED | _SLIDING, "StarCoder2", "sliding windows, dropout after the embeddings"
    ),
}
"""transformers' name of a family (`model_type`) -> its small model."""

IMAGE_SIZES = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 5,
}
"""The sizes of the small image models of the tests."""
IMAGE_FAMILIES = {
    "vit": CutFamily({"hidden_dropout_prob": 0.1}, "ViT"),
    "deit": CutFamily(
        # the library finds the class of a DeiT by this name alone
        {"architectures": ["DeiTForImageClassification"]},
        "DeiT with one classifier",
        "a second token, for distillation",
    ),
    "vit_msn": CutFamily({}, "ViT-MSN"),
}
"""transformers' name of a family of image classifiers -> its small model."""
TORCHVISION = {"vit_b_16": CutFamily({}, "ViT-B, ViT-L, ViT-H; other sizes")}
"""torchvision's names of the networks that `tests/unit/models/test_vit.py` cuts."""
