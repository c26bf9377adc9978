"""Language models cut in three: any that is made like Llama, Qwen3 or GPT-2.

Weights come from a folder or the hub, from the small models that simsplit pretrains itself
(`simsplit/demo`), or from draws (`sizes`). Tied input and output embeddings are untied, for
head and tail learn separately.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.models.fresh import InputShape, Owner, Shape, SplitConfig
from simsplit.models.lora import adapted
from simsplit.models.tokens import BYTES, Reader, tokenizer_of, unloadable
from simsplit.models.transformer import Cut, segment_of
from simsplit.seeds import Scope, isolated

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OWN = "simsplit/"
"""Before the names of the models that simsplit pretrains itself."""


class Sizes(Config):
    """A transformer with random weights; its tokens are bytes."""

    family: Literal["llama", "qwen3", "gpt2"] = "llama"
    """The architecture."""
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must divide into {self.heads} heads of an even size")
        return self


class Lora(Config):
    """Low-rank adapters in place of full fine-tuning; needs the package peft."""

    rank: int = Field(default=8, ge=1)
    """Rank of each adapter."""
    alpha: float = Field(default=16.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before each adapter."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers with adapters, such as q_proj and v_proj."""


class LanguageConfig(SplitConfig):
    """Options of both kinds of language models."""

    name: str | None = None
    """A model of the hub or a folder with one; or simsplit/ci, simsplit/demo, simsplit/gpu: small
    models that are pretrained on first use, without network access. Null: simsplit/demo, or a
    random model if `sizes` is set."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    sizes: Sizes | None = None
    """Sizes of a model with random weights, instead of a pretrained one."""
    head: int = Field(default=2, ge=0)
    """Number of layers in the clients' head."""
    tail: int = Field(default=2, ge=0)
    """Number of layers in the clients' tail."""
    trunk: Literal["layers", "skipped"] = "layers"
    """skipped: the trunk has no layers and hands back what it is given, in training too; what such
    a model comes to, clients can have without a server."""
    learns: tuple[Owner, ...] = ("head", "trunk", "tail")
    """Segments that learn; the others keep their pretrained weights."""
    lora: Lora | None = None
    """Adapters in the segments that learn; null: all their weights learn."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.name is not None and self.sizes is not None:
            raise ValueError("name and sizes: a model is either pretrained or random, give one")
        return self

    @property
    def origin(self) -> str:
        """Where pretrained weights are."""
        return self.name or f"{OWN}demo"

    @property
    def at_hand(self) -> bool:
        """Random, simsplit's own, or in a folder; the hub's are fetched when a run begins."""
        own = self.sizes is not None or self.origin.startswith(OWN)
        return own or Path(self.origin).is_dir()

    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """Both shapes are a text's tokens by the model's width."""
        if len(input_shape) != 1:
            raise ScenarioError(
                "model.kind",
                f"{self.word} reads texts, got images; choose a text source, such as "
                "data.source: python_docs",
            )
        width, layers, context = self.measures()
        (length,) = input_shape
        if self.head + self.tail >= layers:
            raise ScenarioError(
                "model.head" if self.sizes is None else "model.sizes.layers",
                f"must leave the trunk a layer or more, got head: {self.head}, tail: {self.tail} "
                f"of {layers} layers",
            )
        if length > context:
            raise ScenarioError(
                "data.source.length",
                f"must be at most the model's {context} positions, got {length}",
            )
        return (length, width), (length, width)

    def segment(
        self,
        owner: Owner,
        input_shape: InputShape,
        num_classes: int,
        seed: int,
        scope: tuple[Scope, ...] = (),
    ) -> nn.Module:
        """A copy out of the whole model; of a random one, each segment has its own draws."""
        self.shapes(input_shape)
        if self.sizes is None:
            model = _pretrained(self._folder(), self.revision)
        else:
            with isolated(seed, "model", owner, *scope):
                model = _random(self.sizes)
        reader = self._reader(model, num_classes, seed, scope)
        skipped = self.trunk == "skipped"
        made = segment_of(model, owner, Cut(self.head, self.tail, skipped), reader)
        learns = owner in self.learns
        made.requires_grad_(learns)
        if self.lora is not None and learns and not (skipped and owner == "trunk"):
            with isolated(seed, "lora", owner, *scope):
                adapted(made, self.lora.model_dump(), keep=self._fresh_parts)
        return made

    def reader(self) -> Reader:
        """The tokenizer, and what the model predicts."""
        classifies = self.word == "sequence_classifier"
        if self.sizes is not None:
            return Reader(None, self.sizes.vocabulary, classifies=classifies)
        folder = self._folder()
        size = int(_config(folder, self.revision).vocab_size)
        return Reader(tokenizer_of(folder, self.revision), size, classifies=classifies)

    @property
    def _fresh_parts(self) -> tuple[str, ...]:
        """Parts that learn whole even among adapters."""
        return ("reader",) if self.word == "sequence_classifier" else ()

    def _reader(
        self, model: "PreTrainedModel", classes: int, seed: int, scope: tuple[Scope, ...]
    ) -> nn.Module:
        if self.word == "causal_lm":
            output: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            return output
        with isolated(seed, "model", "reader", *scope):
            layer = nn.Linear(model.config.hidden_size, classes, bias=False)
            nn.init.normal_(layer.weight, std=0.02)
        return layer

    def measures(self) -> tuple[int, int, int]:
        """Width, number of layers, and number of positions."""
        if self.sizes is not None:
            return self.sizes.width, self.sizes.layers, self.sizes.context
        if self.origin.startswith(OWN):
            from simsplit.pretrain.tiers import TIERS

            if (named := TIERS.get(self.origin.removeprefix(OWN))) is not None:
                return named.width, named.layers, named.context
        config = _config(self._folder(), self.revision)
        return config.hidden_size, config.num_hidden_layers, config.max_position_embeddings

    def _folder(self) -> str:
        """Where a pretrained model lies, or its name on the hub."""
        if not self.origin.startswith(OWN):
            return self.origin
        from simsplit.pretrain import pretrained

        return str(pretrained(self.origin.removeprefix(OWN)))


class CausalLM(LanguageConfig):
    """A causal language model: the head embeds tokens, the tail predicts the next one."""

    kind: Literal["causal_lm"] = "causal_lm"


class SequenceClassifier(LanguageConfig):
    """A language model that predicts a class at a text's last token."""

    kind: Literal["sequence_classifier"] = "sequence_classifier"


def _random(sizes: Sizes) -> "PreTrainedModel":
    """Weights from the global stream, which the caller lends."""
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        _config_of(sizes)
    )
    return model


def _config_of(sizes: Sizes) -> "PreTrainedConfig":
    from transformers import AutoConfig

    own: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if sizes.family == "gpt2":
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
def _config(name: str, revision: str | None) -> "PreTrainedConfig":
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, revision=revision)
    except Exception as error:  # the hub's client raises from half a dozen packages
        raise unloadable(name, error) from error
    return config


@lru_cache(maxsize=1)
def _pretrained(name: str, revision: str | None) -> "PreTrainedModel":
    """The whole model; segments are copies, so it stays as it is."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where = Path(name)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(where) if where.is_dir() else name, revision=revision, dtype="float32"
        )
    except Exception as error:  # the hub's client raises from half a dozen packages
        raise unloadable(name, error) from error
    return model
