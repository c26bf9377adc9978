"""Whole transformers, to be cut: with weights drawn anew, or saved in a folder or on the hub."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from simsplit.config import Config
from simsplit.models.encoders import ENCODERS
from simsplit.models.tokens import BYTES, loading

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


T5 = "t5"
"""The library's name of a family of which the encoder alone is used, and served whole."""


class Sizes(Config):
    """A transformer with random weights; its tokens are bytes."""

    family: Literal["llama", "qwen3", "gpt2", "bert", "roberta", "deberta-v2", "t5"] = "llama"
    """The architecture; the last four are encoders, which classify only, and t5 is served whole."""
    width: int = Field(default=32, ge=2)
    """Values per token between layers."""
    layers: int = Field(default=6, ge=1)
    """Blocks of attention and MLP."""
    heads: int = Field(default=2, ge=1)
    """Attention heads per layer."""
    vocabulary: int = Field(default=BYTES, ge=BYTES)
    """Number of tokens."""
    context: int = Field(default=512, ge=2)
    """Maximum number of positions."""
    public: bool = False
    """Whether attackers know the random weights that clients start from, as they know pretrained
    ones; false: they have a head and a tail of other draws, and little to learn from."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must divide into {self.heads} heads of an even size")
        return self


def drawn(sizes: Sizes, classes: int | None) -> "PreTrainedModel":
    """Weights from the global stream, which the caller lends; an encoder has classes."""
    config = config_of(sizes)
    if sizes.family == T5:
        encoder: PreTrainedModel = _t5()(config)
        return encoder
    if classes is not None:
        config.num_labels = classes
    model: PreTrainedModel = _kind(classes).from_config(config)
    return model


def _kind(classes: int | None) -> Any:  # noqa: ANN401 - the library's classes are untyped
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForCausalLM if classes is None else AutoModelForSequenceClassification


def _t5() -> Any:  # noqa: ANN401 - the library's classes are untyped
    from transformers import T5EncoderModel

    return T5EncoderModel


def config_of(sizes: Sizes) -> "PreTrainedConfig":
    """The library's configuration of these sizes."""
    from transformers import AutoConfig

    own: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if sizes.family in ENCODERS:
        del own["tie_word_embeddings"]
        # RoBERTa counts positions from padding's number on
        own |= {"hidden_size": sizes.width, "num_hidden_layers": sizes.layers}
        own |= {"num_attention_heads": sizes.heads, "intermediate_size": 3 * sizes.width}
        own |= {"max_position_embeddings": sizes.context + (sizes.family == "roberta")}
        own |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        if sizes.family == "deberta-v2":
            own |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
            own |= {"position_biased_input": False, "type_vocab_size": 0}
            own |= {"pooler_hidden_size": sizes.width, "norm_rel_ebd": "layer_norm"}
    elif sizes.family == T5:
        own |= {"d_model": sizes.width, "num_layers": sizes.layers, "num_heads": sizes.heads}
        own |= {"d_kv": sizes.width // sizes.heads, "d_ff": 3 * sizes.width, "dropout_rate": 0.0}
    elif sizes.family == "gpt2":
        own |= {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads}
        own |= {"n_positions": sizes.context}
        own |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    else:
        own |= {
            "hidden_size": sizes.width,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.heads,
            "head_dim": sizes.width // sizes.heads,
            "intermediate_size": 3 * sizes.width,
            "max_position_embeddings": sizes.context,
        }
    config: PreTrainedConfig = AutoConfig.for_model(sizes.family, **own)
    return config


@lru_cache(maxsize=8)
def config_at(name: str, revision: str | None) -> "PreTrainedConfig":
    """A saved model's configuration."""
    from transformers import AutoConfig

    with loading(name):
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, revision=revision)
    return config


@lru_cache(maxsize=1)
def saved(
    name: str, revision: str | None, classes: int | None
) -> "tuple[PreTrainedModel, frozenset[str]]":
    """The whole model and the weights that it has no saved values of; segments are copies, so it
    stays as it is. An encoder has classes.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    given = {} if classes is None else {"num_labels": classes, "ignore_mismatched_sizes": True}
    where, before = Path(name), logging.get_verbosity()
    logging.set_verbosity(40)  # errors alone: a classifier that is not saved is no news
    try:
        with loading(name):
            kind = _t5() if config_at(name, revision).model_type == T5 else _kind(classes)
            model, told = kind.from_pretrained(
                str(where) if where.is_dir() else name,
                revision=revision,
                dtype="float32",
                output_loading_info=True,
                **given,
            )
    finally:
        logging.set_verbosity(before)
    mismatched = {each[0] for each in told["mismatched_keys"]}
    return model, frozenset(told["missing_keys"]) | mismatched
