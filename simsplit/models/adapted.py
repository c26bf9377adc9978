"""A pretrained transformer on a server, which clients fine-tune with adapters (topology: api)."""

import copy
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, build_classifier
from simsplit.models.fresh import MOST_LAYERS, InputShape, SegmentRequest, Shape
from simsplit.models.frozen import hold_frozen, parse_dtype
from simsplit.models.lower_layers import LowerLayers, find_lower_layers
from simsplit.models.quantised import QuantisedForm, quantise
from simsplit.models.served_trunk import (
    Adapters,
    Layout,
    NoAdapters,
    Pooling,
    Served,
    ServedTail,
    build_layout,
)
from simsplit.models.shards import WeightReader, find_unsaved, lay_out_model
from simsplit.models.text_model import Lora, TextModel, explain_float16, find_targets
from simsplit.models.transformer import build_linear_reader
from simsplit.models.whole import T5, draw_model, load_model
from simsplit.seeds import isolate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AdaptedClassifier(TextModel):
    """A classifier of texts: the server has the transformer, clients have adapters and a head."""

    kind: Literal["adapted_classifier"] = "adapted_classifier"
    adapters: int = Field(default=1, ge=1, le=MOST_LAYERS)
    """Number of adapter sets that a client trains together. Its classification layers get the mean
    of their states, or p3eft's mixture."""
    lora: Lora | None = Lora()
    """The adapters of a set."""
    learns: tuple[Literal["head", "tail"], ...] = ("head", "tail")
    """The parts that learn: adapters (head) and classification layers (tail). [tail]: no adapters.
    """

    @property
    def lacks(self) -> str:
        return self._required_lora.lacks if "head" in self.learns else ""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.lora is None:
            raise ScenarioError(
                "model.lora",
                "got null, which is full fine-tuning, but over an API only adapters can learn; "
                "give their sizes, such as {rank: 8}, or learns: [tail] for none",
            )
        if self.lora.dropout:
            raise ScenarioError(
                "model.lora.dropout",
                f"must be 0, got {self.lora.dropout:g}: an API gives the same answer to the same "
                "call",
            )
        if "tail" not in self.learns:
            raise ScenarioError(
                "model.learns",
                f"must contain tail, got {list(self.learns)}: the classification layers start at "
                "random",
            )
        if "head" not in self.learns and self.adapters > 1:
            raise ScenarioError(
                "model.adapters",
                f"must be 1, got {self.adapters}: learns leaves the adapters (head) out",
            )
        if "head" in self.learns and self.dtype == "float16":
            raise explain_float16("gradients of adapters pass through the transformer")
        return self

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        self.refuse_misfits(input_shape)
        return input_shape, (self.adapters, self.get_sizes()[0])

    def make_segment(self, request: SegmentRequest) -> nn.Module:
        """Make adapters (head), the whole transformer (trunk) or classification layers (tail)."""
        owner, input_shape, num_classes, seed, scope = request
        self.compute_shapes(input_shape)
        if owner == "trunk":
            body, lora = self._load_body(num_classes, seed), self._required_lora
            lower = find_lower_layers(body, self.get_family(), find_targets(body, lora.targets))
            return self._serve(body, lower)
        model, missing = self._lay_out(num_classes) or self._load_whole(num_classes, seed)
        if owner == "tail":
            reader = self._build_reader(model, missing, request)
            return ServedTail(self._read(reader, model, torch.float32) or reader)
        layout = self._build_layout(_extract_body(model, copied=False))
        return Adapters(layout, self.adapters, seed, scope) if layout else NoAdapters()

    def lay_out_segment(self, request: SegmentRequest) -> nn.Module:
        """Make a segment; the trunk without weights, if the model comes from files."""
        if request.owner != "trunk" or (laid_out := self._lay_out(request.num_classes)) is None:
            return self.make_segment(request)
        return self._serve(_extract_body(laid_out[0], copied=True), None)

    def _serve(self, body: nn.Module, lower: LowerLayers | None) -> Served:
        layout, lora = self._build_layout(body), self._required_lora
        return Served(body, layout, lora.alpha / lora.rank, self.pooling, lower)

    @property
    def _required_lora(self) -> Lora:
        assert self.lora is not None, "the validator refuses null"
        return self.lora

    def _build_layout(self, body: nn.Module) -> Layout:
        lora = self._required_lora
        return build_layout(body, lora.rank, lora.targets) if "head" in self.learns else {}

    def _load_body(self, classes: int, seed: int) -> nn.Module:
        """Load the transformer, frozen and in its type: from its files alone, if they are known."""
        dtype = parse_dtype(self.dtype)
        body = None
        if (laid_out := self._lay_out(classes, dtype)) is not None:
            made = _extract_body(laid_out[0], copied=True)
            body = self._read(made, laid_out[0], dtype, self.quantise)
        if body is None:
            body = _extract_body(self._load_whole(classes, seed)[0], copied=True)
            quantise(body, self.quantise, dtype)
        return hold_frozen(body.requires_grad_(False), dtype)

    def _lay_out(
        self, classes: int, dtype: torch.dtype = torch.float32
    ) -> "tuple[PreTrainedModel, frozenset[str]] | None":
        """Build the model without weights, and name those that no file has; None without files."""
        if (saved := self._find_files()) is None:
            return None
        if self.get_family() not in ENCODERS:
            return lay_out_model(self.find_folder(), self.revision, dtype), frozenset()
        model = lay_out_model(self.find_folder(), self.revision, torch.float32, classes)
        return model, find_unsaved(model, saved)

    def _read(
        self,
        part: nn.Module,
        model: "PreTrainedModel",
        dtype: torch.dtype,
        form: QuantisedForm | None = None,
    ) -> nn.Module | None:
        """Read the weights of a laid out part; None if no file has one of them."""
        if (saved := self._find_files()) is None:
            return None
        return WeightReader(model, saved, dtype, form).fill(part, part)

    @property
    def pooling(self) -> Pooling:
        """The token whose state predicts the class."""
        return "first" if self.get_family() in ENCODERS else "last"

    def _load_whole(self, classes: int, seed: int) -> "tuple[PreTrainedModel, frozenset[str]]":
        encoder = classes if self.get_family() in ENCODERS else None
        if self.sizes is None:
            return load_model(self.find_folder(), self.revision, encoder)
        with isolate(seed, "model", "trunk"):
            model = draw_model(self.sizes, encoder)
        # Clients draw these parts themselves, so the server's draws of them are not used.
        parts = ("classifier", "pooler")
        fresh = [name for name, _ in model.named_parameters() if any(p in name for p in parts)]
        return model, frozenset(fresh)

    def _build_reader(
        self, model: "PreTrainedModel", missing: frozenset[str], request: SegmentRequest
    ) -> nn.Module:
        """Build the family's classification layers; an encoder's saved weights are used."""
        _, _, classes, seed, scope = request
        if self.get_family() in ENCODERS:
            return build_classifier(model, missing, seed, scope)
        if self.get_family() != T5:
            return build_linear_reader(model.config.hidden_size, classes, seed, scope)
        from transformers.models.t5.modeling_t5 import T5ClassificationHead

        config: Any = copy.copy(model.config)
        config.num_labels = classes
        with isolate(seed, "model", "reader", *scope):
            return T5ClassificationHead(config)


def _extract_body(model: "PreTrainedModel", *, copied: bool) -> nn.Module:
    """Return the transformer without its output layers and pooler."""
    body: Any = model.base_model
    body = getattr(body, "encoder", body) if model.config.model_type == T5 else body
    body = copy.deepcopy(body) if copied else copy.copy(body)
    # The pooler belongs to the client's classification layers.
    if getattr(body, "pooler", None) is not None:
        body._modules = {**body._modules, "pooler": None}
    made: nn.Module = body
    return made
