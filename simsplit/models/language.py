"""Language models cut in three: made like Llama, Qwen3 or GPT-2, and encoders like BERT.

Weights come from a folder or the hub, from the small models that simsplit pretrains itself
(`simsplit/demo`), or from draws (`sizes`). Tied input and output embeddings are untied, for
head and tail learn separately.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, classifying, encoder_segment, positions_in
from simsplit.models.fresh import InputShape, Owner, Shape, SplitConfig
from simsplit.models.lora import adapted
from simsplit.models.tokens import Reader, tokenizer_of
from simsplit.models.transformer import Cut, segment_of
from simsplit.models.whole import Sizes, config_at, drawn, saved
from simsplit.seeds import Scope, isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OWN = "simsplit/"
"""Before the names of the models that simsplit pretrains itself."""


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

    @property
    def start_known(self) -> bool:
        """Pretrained weights are public; random ones only if they are said to be."""
        return self.sizes is None or self.sizes.public

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
        classes, missing = num_classes if self._encodes() else None, frozenset[str]()
        if self.sizes is None:
            model, missing = saved(self.folder(), self.revision, classes)
        else:
            with isolated(seed, "model", owner, *scope):
                model = drawn(self.sizes, classes)
        skipped = self.trunk == "skipped"
        cut = Cut(self.head, self.tail, skipped)
        if classes is None:
            made = segment_of(model, owner, cut, self._reader(model, num_classes, seed, scope))
        else:
            read = classifying(model, missing, seed, scope) if owner == "tail" else None
            made = encoder_segment(model, owner, cut, read)
        learns = owner in self.learns
        made.requires_grad_(learns)
        if self.lora is not None and learns and not (skipped and owner == "trunk"):
            with isolated(seed, "lora", owner, *scope):
                adapted(made, self.lora.model_dump(), keep=self._fresh_parts)
        return made

    def reader(self) -> Reader:
        """The tokenizer, and what the model predicts."""
        told = {
            "classifies": self.word == "sequence_classifier",
            "both_ways": self._encodes(),
        }
        if self.sizes is not None:
            return Reader(None, self.sizes.vocabulary, **told)
        folder = self.folder()
        size = int(config_at(folder, self.revision).vocab_size)
        return Reader(tokenizer_of(folder, self.revision), size, **told)

    @property
    def both_ways(self) -> bool:
        """Whether every token looks both ways, as far as can be told without the hub."""
        return self.at_hand and self._encodes()

    def _encodes(self) -> bool:
        """Whether the model is an encoder; ScenarioError where the kind asks for tokens."""
        if self.sizes is not None:
            family: str = self.sizes.family
        elif self.origin.startswith(OWN):
            return False
        else:
            family = config_at(self.folder(), self.revision).model_type
        if family in ENCODERS and self.word == "causal_lm":
            raise ScenarioError(
                "model.kind",
                f"got causal_lm, but {family} is an encoder, which predicts no next token: use "
                "sequence_classifier",
            )
        return family in ENCODERS

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
        config = config_at(self.folder(), self.revision)
        most = positions_in(config) if self._encodes() else config.max_position_embeddings
        return config.hidden_size, config.num_hidden_layers, most

    def folder(self) -> str:
        """Where a pretrained model lies, or its name on the hub."""
        if not self.origin.startswith(OWN):
            return self.origin
        from simsplit.pretrain import pretrained

        return str(pretrained(self.origin.removeprefix(OWN)))


class CausalLM(LanguageConfig):
    """A causal language model: the head embeds tokens, the tail predicts the next one."""

    kind: Literal["causal_lm"] = "causal_lm"


class SequenceClassifier(LanguageConfig):
    """A model that predicts a text's class: at its last token, and an encoder at its first."""

    kind: Literal["sequence_classifier"] = "sequence_classifier"
