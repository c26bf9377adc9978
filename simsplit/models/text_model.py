"""The base of all models that read texts: where their weights come from, and their sizes.

Low-rank adapters (Hu et al., 2022) in a segment of a language model are those of the package peft.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from simsplit.config import Config
from simsplit.errors import ScenarioError, SimsplitError, install_command, suggest
from simsplit.models.encoders import ENCODERS
from simsplit.models.fresh import InputShape, SplitConfig
from simsplit.models.frozen import Dtype
from simsplit.models.quantised import QuantisedForm
from simsplit.models.shards import WeightFiles, find_weight_files
from simsplit.models.tokenizers import Reader, load_tokenizer
from simsplit.models.transformer import get_layers
from simsplit.models.whole import T5, Sizes, find_cache_limit, load_config, read_sizes
from simsplit.pretrain.shipped_models import digest_shipped
from simsplit.pretrain.tiers import BY_SEED, choose_draw, find_named

OWN = "simsplit/"
"""Prefix of the names of models that simsplit pretrains itself."""


def refuse_two_origins(name: str | None, sizes: object) -> None:
    """Raise ValueError for a model that is to be both pretrained and random."""
    if name is not None and sizes is not None:
        raise ValueError(
            "name is for a pretrained model and sizes for a random one; give only one of them"
        )


def describe_lack_of_peft() -> str:
    """Return how to install the package peft if this machine lacks it; else empty."""
    return "" if find_spec("peft") else f"needs the package peft: {install_command('text')}"


class Lora(Config):
    """Low-rank adapters instead of full fine-tuning; they need the package peft."""

    rank: int = Field(default=8, ge=1)
    """Rank of each adapter."""
    alpha: float = Field(default=16.0, gt=0)
    """Scale of the adapters' outputs, which are multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate before each adapter."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers with adapters, such as q_proj and v_proj, or ends of their paths, such as
    layers.5.self_attn.q_proj; all-linear: all linear layers except the output layer."""

    @property
    def lacks(self) -> str:
        """How to install the package peft if this machine lacks it; else empty."""
        return describe_lack_of_peft()

    @field_validator("targets")
    @classmethod
    def _refuse_none(cls, targets: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if not targets:
            raise ValueError("must name at least one layer, or be all-linear; got none")
        return targets


class TextModel(SplitConfig):
    """Options of all models that read texts."""

    name: str | None = None
    """A model on the hub or a folder with one; or simsplit/ci or simsplit/demo, small models that
    come with the package. simsplit/demo@1 and @2 are further draws of the demo model;
    simsplit/demo@seed is the draw of the scenario's seed, modulo three. simsplit/gpu and other
    draws are pretrained on first use, without network access. Null: simsplit/demo, or a random
    model if `sizes` is set."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: the main branch."""
    sizes: Sizes | None = None
    """Sizes of a model with random weights, instead of a pretrained one."""

    dtype: Dtype = "float32"
    """The type in which frozen weights are held and computed with; float16 only where no gradients
    pass through them, since small ones would become 0. What learns (adapters, fresh
    classification layers, segments without adapters) is held in float32, and what crosses is
    float32."""
    quantise: QuantisedForm | None = None
    """The form in which weights of linear layers and experts are held, in segments that are frozen
    or learn by adapters (QLoRA): int8, a byte for each and a scale for each output; or nf4, four
    bits for each and a scale for each 64. They are computed with in `dtype`. Null: as in `dtype`.
    """
    _seed: int = 0
    """The scenario's seed, which chooses the draw of a model named `...@seed`."""

    @field_validator("name")
    @classmethod
    def _refuse_unknown_draw(cls, name: str | None) -> str | None:
        if name is not None and name.startswith(OWN):
            try:
                find_named(choose_draw(name.removeprefix(OWN), 0))
            except SimsplitError as error:
                raise ValueError(str(error)) from None
        return name

    @model_validator(mode="after")
    def _refuse_two_origins(self) -> Self:
        refuse_two_origins(self.name, self.sizes)
        return self

    @property
    def origin(self) -> str:
        """The name or folder of the pretrained weights."""
        return self.name or f"{OWN}demo"

    def at_seed(self, seed: int) -> Self:
        if not self.origin.endswith(BY_SEED):
            return self
        made = self.model_copy()
        made._seed = seed
        return made

    @property
    def own_name(self) -> str | None:
        """The name of a model of simsplit's own without prefix, such as `demo@1`; None: others'."""
        if self.sizes is not None or not self.origin.startswith(OWN):
            return None
        return choose_draw(self.origin.removeprefix(OWN), self._seed)

    def digest_content(self) -> str | None:
        return digest_shipped(self.origin.removeprefix(OWN)) if self.own_name else None

    def describe_own_weights(self) -> Mapping[str, str | None]:
        if self.own_name is None:
            return {}
        return {"name": f"{OWN}{self.own_name}", "digest": digest_shipped(self.own_name)}

    def widen(self) -> Self:
        if self.dtype == "float32" and self.quantise is None:
            return self
        return self.model_copy(update={"dtype": "float32", "quantise": None})

    @property
    def is_available_offline(self) -> bool:
        """Whether the model is random, simsplit's own, or in a folder, and not on the hub."""
        own = self.sizes is not None or self.origin.startswith(OWN)
        return own or Path(self.origin).is_dir()

    @property
    def is_pretrained(self) -> bool:
        return self.sizes is None

    @property
    def is_start_public(self) -> bool:
        """Whether the initial weights are public: pretrained, or random with `sizes.public`."""
        return self.sizes is None or self.sizes.public

    @property
    def classifies(self) -> bool:
        """Whether the model predicts classes, not tokens."""
        return True

    def make_reader(self) -> Reader:
        """Build the reader: the tokenizer, and the kind of the model's predictions."""
        kinds = {"classifies": self.classifies, "both_ways": self.encodes()}
        if self.sizes is not None:
            return Reader(None, self.sizes.vocabulary, **kinds)
        folder = self.find_folder()
        size = int(load_config(folder, self.revision).vocab_size)
        return Reader(load_tokenizer(folder, self.revision), size, **kinds)

    @property
    def is_bidirectional(self) -> bool:
        """Whether tokens attend in both directions; False if only the hub knows."""
        return self.is_available_offline and self.encodes()

    def get_family(self) -> str:
        """Return the library's name of the architecture."""
        if self.sizes is not None:
            return self.sizes.family
        if self.origin.startswith(OWN):
            return "llama"
        return str(load_config(self.find_folder(), self.revision).model_type)

    def encodes(self) -> bool:
        """Return whether tokens attend in both directions."""
        return self.get_family() in (*ENCODERS, T5)

    def get_sizes(self) -> tuple[int, int, int]:
        """Return the width, the number of layers and the number of positions."""
        if self.sizes is not None:
            return self.sizes.width, self.sizes.layers, self.sizes.context
        if self.own_name is not None:
            named = find_named(self.own_name)
            return named.width, named.layers, named.context
        return read_sizes(load_config(self.find_folder(), self.revision))

    def find_cache_limit(self) -> int | None:
        """Return how many tokens caches may hold; None: any number, or not known here."""
        if self.sizes is not None or self.origin.startswith(OWN):
            return None
        return find_cache_limit(self.origin, self.revision)

    def refuse_misfits(self, input_shape: InputShape) -> None:
        """Raise ScenarioError if samples are not texts, or longer than the model's positions."""
        if len(input_shape) != 1:
            raise ScenarioError(
                "model.kind",
                f"{self.kind_name} reads texts, got images; choose a text source, such as "
                "data.source: python_docs",
            )
        (length,), context = input_shape, self.get_sizes()[2]
        if length > context:
            raise ScenarioError(
                "data.source.length",
                f"must be at most the model's {context} positions, got {length}",
            )

    def make_ready(self) -> None:
        if self.is_pretrained:
            self.find_folder()

    def find_folder(self) -> str:
        """Return the folder of the pretrained model, or its name on the hub."""
        if self.own_name is None:
            return self.origin
        from simsplit.pretrain import fetch_pretrained

        return str(fetch_pretrained(self.own_name))

    def _find_files(self) -> WeightFiles | None:
        """Return the model's files; None if it is random, or has none that can be read in parts."""
        if self.sizes is not None:
            return None
        return find_weight_files(self.find_folder(), self.revision)


def explain_float16(reason: str) -> ScenarioError:
    """Return the error about gradients that are too small for float16."""
    return ScenarioError(
        "model.dtype",
        f"got float16, but {reason}, where small ones would become 0; use bfloat16 or float32",
    )


def add_adapters(segment: nn.Module, lora: Mapping[str, Any], keep: Sequence[str] = ()) -> None:
    """Add low-rank adapters to a segment's layers, in place, and freeze all other weights.

    Embeddings, norms and the output layer get none. The parts named in `keep` learn too.
    """
    layers = get_layers(segment)
    segment.requires_grad_(False)
    if linear := find_targets(layers, lora["targets"]):
        inject(layers, list(linear), lora["rank"], lora["alpha"], lora_dropout=lora["dropout"])
    for name in keep:
        part = getattr(segment, name, None)
        if part is not None:
            part.requires_grad_(True)


def inject(layers: nn.Module, names: list[str], rank: int, alpha: Any, **options: Any) -> None:  # noqa: ANN401 - peft's
    """Add adapters to the layers with these names, in place; `options` are peft's."""
    if lack := describe_lack_of_peft():
        raise ScenarioError("model.lora", lack)
    from peft import LoraConfig, inject_adapter_in_model

    transposed = any(_is_transposed(module) for module in layers.modules())
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=names, fan_in_fan_out=transposed, **options
    )
    bases = [layers.get_submodule(name) for name in names]
    for base in bases:
        # Else peft draws adapters in the type of the frozen weights, which rounds them.
        base.__dict__["compute_dtype"] = torch.float32
    inject_adapter_in_model(config, layers)
    for base in bases:
        del base.__dict__["compute_dtype"]


def find_targets(layers: nn.Module, targets: Sequence[str] | str) -> dict[str, tuple[int, int]]:
    """Return the linear layers that get adapters: their numbers of inputs and outputs, by name."""
    linear = {
        name: (rows, columns) if _is_transposed(module) else (columns, rows)
        for name, module in layers.named_modules()
        if isinstance(module, nn.Linear) or _is_transposed(module)
        for rows, columns in [map(int, module.weight.shape)]
    }
    if targets == "all-linear":
        return linear
    known = {name.rsplit(".", 1)[-1] for name in linear}
    for target in targets:
        if not any(_ends_with(name, target) for name in linear):
            allowed = ", ".join(sorted(known))
            raise ScenarioError(
                "model.lora.targets",
                f"unknown '{target}'{suggest(target, known) or ','} allowed: {allowed}",
            )
    return {
        name: sizes
        for name, sizes in linear.items()
        if any(_ends_with(name, target) for target in targets)
    }


def _ends_with(name: str, target: str) -> bool:
    """Return whether a dotted name ends with these whole parts."""
    return f".{name}".endswith(f".{target}")


def _is_transposed(module: nn.Module) -> bool:
    """Return whether the module is one of GPT-2's linear layers, with weights inputs x outputs."""
    return type(module).__name__ == "Conv1D"
