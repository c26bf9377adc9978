"""Language models cut in three: models like Llama, Qwen3 or GPT-2, and encoders like BERT.

Weights come from a folder or the hub, from the small models that simsplit pretrains itself
(`simsplit/demo`), or from random draws (`sizes`). Where input and output embeddings are tied, each
end is made with a copy; `simsplit.assembly.tying` decides whether they become one again.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.encoders import (
    ENCODERS,
    EncoderBlocks,
    build_classifier,
    copy_encoder_segment,
)
from simsplit.models.exactness import require_exact_cut, require_exact_saved
from simsplit.models.families import get_token_reader
from simsplit.models.fresh import InputShape, Owner, Place, SegmentRequest, Shape
from simsplit.models.frozen import hold_frozen, parse_dtype
from simsplit.models.quantised import QuantisedForm, quantise
from simsplit.models.shards import (
    WeightReader,
    find_unsaved,
    has_weight_files,
    is_weightless,
    lay_out_model,
    leave_out_weights,
)
from simsplit.models.text_model import Lora, TextModel, add_adapters, explain_float16
from simsplit.models.transformer import (
    Blocks,
    Cut,
    build_linear_reader,
    copy_segment,
    get_layers,
)
from simsplit.models.whole import (
    T5,
    build_config,
    draw_model,
    has_tied_embeddings,
    load_model,
)
from simsplit.seeds import isolate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_OWNERS: tuple[Owner, ...] = ("head", "trunk", "tail")


class LanguageConfig(TextModel):
    """Options of both kinds of language models."""

    cut_field = "head"
    head: int = Field(default=2, ge=0)
    """Number of layers in the clients' head."""
    tail: int = Field(default=2, ge=0)
    """Number of layers in the clients' tail."""
    trunk: Literal["layers", "skipped"] = "layers"
    """skipped: the trunk has no layers and returns its input, in training too. Clients could reach
    such a model's accuracy without a server."""
    learns: tuple[Owner, ...] = ("head", "trunk", "tail")
    """Segments that learn; the others keep their pretrained weights."""
    lora: Lora | None = None
    """Low-rank adapters in the segments that learn; null: all weights of these segments learn."""

    @model_validator(mode="after")
    def _refuse_idle_quantisation(self) -> Self:
        learned = {*self.learns, *(["trunk"] if self.trunk == "skipped" else [])}
        if self.quantise and self.lora is None and len(learned) == len(_OWNERS):
            raise ScenarioError(
                "model.quantise",
                f"got {self.quantise}, but all weights learn, and those that learn cannot be "
                "quantised; add adapters (model.lora: {rank: 8}), or leave segments out of "
                "model.learns",
            )
        return self

    @model_validator(mode="after")
    def _refuse_vanishing_gradients(self) -> Self:
        for owner in _OWNERS:
            before = {*_OWNERS[: _OWNERS.index(owner)]}
            # A segment that learns without adapters is in float32.
            halved = self.lora is not None if owner in self.learns else before & {*self.learns}
            if halved and self.dtype == "float16" and (owner, self.trunk) != ("trunk", "skipped"):
                raise explain_float16(f"gradients pass through the {owner}'s frozen weights")
        return self

    @property
    def lacks(self) -> str:
        return "" if self.lora is None else self.lora.lacks

    def enter_trunk(self, trunk: nn.Module, place: Place) -> nn.Module:
        assert isinstance(trunk, Blocks | EncoderBlocks), "these are the trunks of language models"
        return trunk.enter(self.count_passed(place))

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        self.refuse_misfits(input_shape)
        width, layers, _ = self.get_sizes()
        (length,) = input_shape
        if self.head + self.tail >= layers:
            raise ScenarioError(
                "model.head" if self.sizes is None else "model.sizes.layers",
                f"must leave at least one layer to the trunk, got head: {self.head}, tail: "
                f"{self.tail} of {layers} layers",
            )
        return (length, width), (length, width)

    def make_segment(self, request: SegmentRequest) -> nn.Module:
        """Make a segment; a random model's segments have separate draws."""
        owner, _, _, seed, scope = request
        learns = owner in self.learns
        adapted = self.lora is not None and learns
        dtype = torch.float32 if learns and not adapted else parse_dtype(self.dtype)
        form = self.quantise if adapted or not learns else None
        made = self._read_segment(request, dtype, form) or self._copy_segment(request)
        quantise(get_layers(made), form, dtype)
        adapted = adapted and not (self.trunk == "skipped" and owner == "trunk")
        made.requires_grad_(learns and not adapted)
        if self.lora is not None and adapted:
            with isolate(seed, "lora", owner, *scope):
                add_adapters(made, self.lora.model_dump(), keep=self._fresh_parts)
        made = hold_frozen(made, dtype)
        return made.to("meta") if is_weightless() else made

    def lay_out_segment(self, request: SegmentRequest) -> nn.Module:
        laid_out = self._lay_out(request, torch.float32)
        return self.make_segment(request) if laid_out is None else laid_out[1]

    def _read_segment(
        self, request: SegmentRequest, dtype: torch.dtype, form: QuantisedForm | None
    ) -> nn.Module | None:
        """Read a segment from the model's own files; None if it does not come from such ones."""
        if (laid_out := self._lay_out(request, dtype)) is None:
            return None
        model, made = laid_out
        if is_weightless():
            return made.to("meta")
        if (saved := self._find_files()) is None:
            return None
        learning = self._fresh_parts if request.owner in self.learns else ()
        return WeightReader(model, saved, dtype, form, learning).fill(made, get_layers(made))

    @property
    def is_tied(self) -> bool:
        """Whether the whole model predicts tokens with the table that embeds them.

        It is False for a model that is not on this machine yet.
        """
        if self.classifies or self.sizes is not None or self.own_name is not None:
            return False
        return has_tied_embeddings(self.origin, self.revision)

    def has_weights(self) -> bool:
        """Return whether the weights are random, or in files on this machine."""
        return self.sizes is not None or has_weight_files(self.find_folder(), self.revision)

    def _lay_out(
        self, request: SegmentRequest, dtype: torch.dtype
    ) -> "tuple[PreTrainedModel, nn.Module] | None":
        """Cut a segment out of the model without weights; None if no files have them."""
        if self.sizes is not None:
            return None
        owner, input_shape, num_classes, seed, scope = request
        self.compute_shapes(input_shape)
        folder, cut = self.find_folder(), Cut(self.head, self.tail, self.trunk == "skipped")
        require_exact_saved(folder, self.revision)
        if not self.encodes():
            model = lay_out_model(folder, self.revision, dtype)
            return model, copy_segment(model, owner, cut, self._build_reader(model, request))
        if (saved := self._find_files()) is None:
            return None
        # Layers without saved weights are drawn, in float32 whatever the type of the others.
        model = lay_out_model(folder, self.revision, torch.float32, num_classes)
        read = None
        if owner == "tail":
            read = build_classifier(model, find_unsaved(model, saved), seed, scope)
        return model, copy_encoder_segment(model, owner, cut, read)

    def _copy_segment(self, request: SegmentRequest) -> nn.Module:
        """Copy a segment out of a model that is in memory as a whole."""
        owner, input_shape, num_classes, seed, scope = request
        self.compute_shapes(input_shape)
        if self.sizes is None:
            require_exact_saved(self.find_folder(), self.revision)
        else:
            require_exact_cut(build_config(self.sizes), "model.sizes")
        classes, missing = num_classes if self.encodes() else None, frozenset[str]()
        if self.sizes is None:
            model, missing = load_model(self.find_folder(), self.revision, classes)
        else:
            left_out = leave_out_weights() if is_weightless() else nullcontext()
            with isolate(seed, "model", owner, *scope), left_out:
                model = draw_model(self.sizes, classes, weightless=is_weightless())
        cut = Cut(self.head, self.tail, self.trunk == "skipped")
        if classes is None:
            return copy_segment(model, owner, cut, self._build_reader(model, request))
        read = build_classifier(model, missing, seed, scope) if owner == "tail" else None
        return copy_encoder_segment(model, owner, cut, read)

    @property
    def classifies(self) -> bool:
        return self.kind_name == "sequence_classifier"

    def encodes(self) -> bool:
        """Return whether the model is an encoder, or raise ScenarioError if the kind forbids it."""
        family = self.get_family()
        if family == T5:
            raise ScenarioError(
                "model.name" if self.sizes is None else "model.sizes.family",
                "got a T5, which cannot be cut; a server can offer it whole: model: "
                "{kind: adapted_classifier}, with topology: api",
            )
        if family in ENCODERS and not self.classifies:
            raise ScenarioError(
                "model.kind",
                f"got causal_lm, but {family} is an encoder, which does not predict next tokens; "
                "use sequence_classifier",
            )
        return family in ENCODERS

    @property
    def _fresh_parts(self) -> tuple[str, ...]:
        """The parts that learn as a whole next to adapters, since they start at random."""
        return ("reader",) if self.classifies else ()

    def _build_reader(self, model: "PreTrainedModel", request: SegmentRequest) -> nn.Module:
        if not self.classifies:
            return get_token_reader(model)
        _, _, classes, seed, scope = request
        return build_linear_reader(model.config.hidden_size, classes, seed, scope)


class CausalLM(LanguageConfig):
    """A causal language model: the head embeds tokens, and the tail predicts the next one."""

    kind: Literal["causal_lm"] = "causal_lm"


class SequenceClassifier(LanguageConfig):
    """A model that predicts a text's class from its last token, or from its first (encoders)."""

    kind: Literal["sequence_classifier"] = "sequence_classifier"
