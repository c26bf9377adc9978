"""Whole transformers, from which segments are copied: random ones, or saved ones."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.foreign import read_facts
from simsplit.models.encoders import ENCODERS, count_positions
from simsplit.models.families import TEXTS
from simsplit.models.fresh import MOST_LAYERS, MOST_WIDTH, refuse_without_room
from simsplit.models.hub import lies_here
from simsplit.models.image_transformer import VITS
from simsplit.models.tokenizers import BYTES, refuse_unloadable

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


_ANY_LENGTH = 1 << 20
"""Number of positions of a model with relative positions, which has no limit."""
T5 = "t5"
"""The library's name of a family that is served whole; only its encoder is used."""


class Sizes(Config):
    """A transformer with random weights, whose tokens are bytes."""

    family: Literal[
        "llama", "qwen3", "qwen3_moe", "gpt2", "bert", "roberta", "deberta-v2", "t5"
    ] = "llama"
    """The architecture. The last four are encoders, which only classify; t5 can only be served
    whole (adapted_classifier). Each layer of qwen3_moe has 8 experts of the model's width, of which
    a token goes through two."""
    width: int = Field(default=32, ge=2, le=MOST_WIDTH)
    """Values per token between layers."""
    layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of layers, each of attention and MLP."""
    heads: int = Field(default=2, ge=1)
    """Attention heads per layer. Twice their number must divide `width`."""
    vocabulary: int = Field(default=BYTES, ge=BYTES, le=MOST_WIDTH)
    """Number of tokens."""
    context: int = Field(default=512, ge=2, le=MOST_WIDTH)
    """Largest number of tokens of a text."""
    public: bool = False
    """Whether attackers know the random weights that clients start from, as they know pretrained
    ones; false: their head and tail have other random weights, from which they learn little."""

    @model_validator(mode="after")
    def _refuse_odd_heads(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of {2 * self.heads} (twice the heads), got {self.width}"
            )
        return self


def draw_model(sizes: Sizes, classes: int | None, *, weightless: bool = False) -> "PreTrainedModel":
    """Build a model with random weights; `classes` is set for encoders.

    The weights come from torch's global stream, which the caller must have seeded (`isolated`).
    `weightless`: the caller drops each one as soon as it is made.
    """
    refuse_without_room(
        count_bytes(sizes.width, sizes.layers, sizes.vocabulary, weightless=weightless)
    )
    config = build_config(sizes)
    if classes is not None:
        config.num_labels = classes
    kind = get_class(sizes.family, classes)
    model: PreTrainedModel = kind(config) if sizes.family == T5 else kind.from_config(config)
    return model


def count_bytes(width: int, layers: int, vocabulary: int = 0, *, weightless: bool = False) -> int:
    """Count the fewest bytes of a transformer's weights and gradients, or of its largest weight."""
    if weightless:
        return 4 * width * max(3 * width, vocabulary)
    return 8 * width * (10 * width * layers + 2 * vocabulary)


def get_class(family: str, classes: int | None) -> Any:  # noqa: ANN401 - the library's classes are untyped
    """Return the library's class that builds models of a family; `classes` is set for encoders."""
    import transformers

    if family in VITS:
        return transformers.AutoModelForImageClassification
    if family == T5:
        return transformers.T5EncoderModel
    if classes is None:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForSequenceClassification


def build_config(sizes: Sizes) -> "PreTrainedConfig":
    """Build the library's configuration of these sizes."""
    from transformers import AutoConfig

    own: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if sizes.family == T5:
        own |= {"d_model": sizes.width, "num_layers": sizes.layers, "num_heads": sizes.heads}
        own |= {"d_kv": sizes.width // sizes.heads, "d_ff": 3 * sizes.width, "dropout_rate": 0.0}
    elif sizes.family == "gpt2":
        own |= {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads}
        own |= {"n_positions": sizes.context}
        own |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    else:
        own |= {"hidden_size": sizes.width, "num_hidden_layers": sizes.layers}
        own |= {"num_attention_heads": sizes.heads, "intermediate_size": 3 * sizes.width}
        # RoBERTa's first position is the padding token's number plus one, so it needs one more.
        own |= {"max_position_embeddings": sizes.context + (sizes.family == "roberta")}
    if sizes.family in ENCODERS:
        del own["tie_word_embeddings"]
        own |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    elif sizes.family not in (T5, "gpt2"):
        own |= {"num_key_value_heads": sizes.heads, "head_dim": sizes.width // sizes.heads}
    if sizes.family == "deberta-v2":
        own |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
        own |= {"position_biased_input": False, "type_vocab_size": 0}
        own |= {"pooler_hidden_size": sizes.width, "norm_rel_ebd": "layer_norm"}
    if sizes.family == "qwen3_moe":
        own |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": sizes.width}
    config: PreTrainedConfig = AutoConfig.for_model(sizes.family, **own)
    return config


def read_sizes(config: "PreTrainedConfig") -> tuple[int, int, int]:
    """Return a model's width, number of layers and number of positions.

    Raise ScenarioError for a family that is not known, or whose positions have other names.
    """
    refuse_unknown_family(config)
    if config.model_type == T5:
        return config.hidden_size, config.num_hidden_layers, _ANY_LENGTH
    for name in ("hidden_size", "num_hidden_layers", "max_position_embeddings"):
        if not isinstance(getattr(config, name, None), int):
            raise _explain_unknown(config, f"its configuration has no {name}")
    encodes = config.model_type in ENCODERS
    most = count_positions(config) if encodes else config.max_position_embeddings
    return config.hidden_size, config.num_hidden_layers, most


def refuse_unknown_family(config: "PreTrainedConfig") -> None:
    """Raise ScenarioError for a model of several models, or an encoder that is not known."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    parts = [*getattr(config, "sub_configs", ())]
    if parts and not hasattr(config, "num_hidden_layers"):
        raise _explain_unknown(config, f"it is made of several models ({', '.join(parts)})")
    known = config.model_type in (*ENCODERS, T5)
    if not known and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = "the library has no causal model of it, and it is none of these encoders"
        raise _explain_unknown(config, reason)


def _explain_unknown(config: "PreTrainedConfig", reason: str) -> ScenarioError:
    return ScenarioError(
        "model.name", f"{config.model_type} cannot be used: {reason}; allowed: {TEXTS}"
    )


@lru_cache(maxsize=8)
def load_config(name: str, revision: str | None) -> "PreTrainedConfig":
    """Load a saved model's configuration."""
    from transformers import AutoConfig

    with refuse_unloadable(name):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            name, revision=revision, local_files_only=lies_here(name)
        )
    return config


def has_tied_embeddings(name: str, revision: str | None) -> bool:
    """Return whether a saved model ties its output layer to its embeddings; the hub is not asked.

    Files may leave it to the family, so the library reads them.
    """
    with suppress(OSError, ValueError):
        _find_config(name, revision)
        return bool(getattr(load_config(name, revision), "tie_word_embeddings", False))
    return False


def find_cache_limit(name: str, revision: str | None) -> int | None:
    """Return how many tokens a saved model's caches may hold; None: any number, or not known here.

    From there on, longrope turns all positions by other angles, those of cached keys too.
    """
    with suppress(OSError, ValueError):
        config = read_facts(_find_config(name, revision))
        scaling = config.get("rope_parameters") or config.get("rope_scaling")
        if isinstance(scaling, dict) and "longrope" in (
            scaling.get("rope_type"),
            scaling.get("type"),
        ):
            limits = (of.get("original_max_position_embeddings") for of in (config, scaling))
            return next((limit for limit in limits if isinstance(limit, int)), None)
    return None


def _find_config(name: str, revision: str | None) -> Path:
    """Return the file of a saved model's configuration, without asking the hub."""
    from huggingface_hub import try_to_load_from_cache

    if (Path(name) / "config.json").is_file():
        return Path(name) / "config.json"
    file = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(file, str):
        raise FileNotFoundError(name)
    return Path(file)


@lru_cache(maxsize=1)
def load_model(
    name: str, revision: str | None, classes: int | None
) -> "tuple[PreTrainedModel, frozenset[str]]":
    """Load a whole model, and return it with the names of weights that have no saved values.

    `classes` is set for encoders. The model is cached, so callers must copy segments from it.
    """
    return _load(name, revision, classes, "float32")


def load_as_saved(name: str, revision: str | None) -> "PreTrainedModel":
    """Load a whole model that predicts tokens in the type of its files, for the caller alone."""
    return _load(name, revision, None, "auto")[0]


def _load(
    name: str, revision: str | None, classes: int | None, dtype: str
) -> "tuple[PreTrainedModel, frozenset[str]]":
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    given = {} if classes is None else {"num_labels": classes, "ignore_mismatched_sizes": True}
    where, before = Path(name), logging.get_verbosity()
    logging.set_verbosity(40)  # errors only: a missing classifier is expected
    try:
        with refuse_unloadable(name):
            kind = get_class(load_config(name, revision).model_type, classes)
            model, report = kind.from_pretrained(
                str(where) if where.is_dir() else name,
                revision=revision,
                dtype=dtype,
                output_loading_info=True,
                local_files_only=lies_here(name),
                **given,
            )
    finally:
        logging.set_verbosity(before)
    mismatched = {each[0] for each in report["mismatched_keys"]}
    return model, frozenset(report["missing_keys"]) | mismatched
