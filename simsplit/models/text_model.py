"""What all models that read texts have in common: where their weights are, how large they are."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, positions_in
from simsplit.models.fresh import InputShape, SplitConfig
from simsplit.models.tokens import Reader, tokenizer_of
from simsplit.models.whole import T5, Sizes, config_at

OWN = "simsplit/"
"""Before the names of the models that simsplit pretrains itself."""
_ANY_LENGTH = 1 << 20
"""Positions of a model whose positions are relative."""


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

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if not targets:
            raise ValueError("names no layer; give some, or all-linear")
        return targets


class TextModel(SplitConfig):
    """Options of all models of texts."""

    name: str | None = None
    """A model of the hub or a folder with one; or simsplit/ci, simsplit/demo, simsplit/gpu: small
    models that are pretrained on first use, without network access. Null: simsplit/demo, or a
    random model if `sizes` is set."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    sizes: Sizes | None = None
    """Sizes of a model with random weights, instead of a pretrained one."""

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

    @property
    def classifies(self) -> bool:
        """Whether it predicts classes rather than tokens."""
        return True

    def reader(self) -> Reader:
        """The tokenizer, and what the model predicts."""
        told = {"classifies": self.classifies, "both_ways": self.encodes()}
        if self.sizes is not None:
            return Reader(None, self.sizes.vocabulary, **told)
        folder = self.folder()
        size = int(config_at(folder, self.revision).vocab_size)
        return Reader(tokenizer_of(folder, self.revision), size, **told)

    @property
    def both_ways(self) -> bool:
        """Whether every token looks both ways, as far as can be told without the hub."""
        return self.at_hand and self.encodes()

    def family(self) -> str:
        """The library's name of the architecture."""
        if self.sizes is not None:
            return self.sizes.family
        if self.origin.startswith(OWN):
            return "llama"
        return str(config_at(self.folder(), self.revision).model_type)

    def encodes(self) -> bool:
        """Whether every token looks both ways."""
        return self.family() in (*ENCODERS, T5)

    def measures(self) -> tuple[int, int, int]:
        """Width, number of layers, and number of positions."""
        if self.sizes is not None:
            return self.sizes.width, self.sizes.layers, self.sizes.context
        if self.origin.startswith(OWN):
            from simsplit.pretrain.tiers import TIERS

            if (named := TIERS.get(self.origin.removeprefix(OWN))) is not None:
                return named.width, named.layers, named.context
        config = config_at(self.folder(), self.revision)
        family = self.family()
        if family == T5:
            return config.hidden_size, config.num_hidden_layers, _ANY_LENGTH
        most = positions_in(config) if family in ENCODERS else config.max_position_embeddings
        return config.hidden_size, config.num_hidden_layers, most

    def refuse_misfits(self, input_shape: InputShape) -> None:
        """ScenarioError for samples that are no texts, or longer than its positions."""
        if len(input_shape) != 1:
            raise ScenarioError(
                "model.kind",
                f"{self.word} reads texts, got images; choose a text source, such as "
                "data.source: python_docs",
            )
        (length,), context = input_shape, self.measures()[2]
        if length > context:
            raise ScenarioError(
                "data.source.length",
                f"must be at most the model's {context} positions, got {length}",
            )

    def folder(self) -> str:
        """Where a pretrained model lies, or its name on the hub."""
        if not self.origin.startswith(OWN):
            return self.origin
        from simsplit.pretrain import pretrained

        return str(pretrained(self.origin.removeprefix(OWN)))
