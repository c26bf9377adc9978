"""A pretrained transformer that a server offers whole, fine-tuned by adapters (topology: api)."""

import copy
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, classifying
from simsplit.models.fresh import InputShape, Owner, SegmentRequest, Shape
from simsplit.models.served import (
    Adapters,
    Layout,
    NoAdapters,
    Pooling,
    Served,
    ServedTail,
    layout_of,
)
from simsplit.models.text_model import Lora, TextModel
from simsplit.models.transformer import linear_reader
from simsplit.models.whole import T5, drawn, saved
from simsplit.seeds import Scope, isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AdaptedClassifier(TextModel):
    """A classifier of texts: the server has the transformer, clients have adapters and a head."""

    kind: Literal["adapted_classifier"] = "adapted_classifier"
    adapters: int = Field(default=1, ge=1)
    """Sets of adapters that a client trains at once; its head gets their mean, or what p3eft mixes
    of them."""
    lora: Lora | None = Lora()
    """The adapters of a set."""
    learns: tuple[Literal["head", "tail"], ...] = ("head", "tail")
    """What learns: the adapters (head) and the client's own head (tail). [tail]: no adapters."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lora is None:
            raise ScenarioError(
                "model.lora",
                "got null, which is full fine-tuning; over an API nothing but adapters travels: "
                "give their sizes, such as {rank: 8}, or learns: [tail] to have none",
            )
        if self.lora.dropout:
            raise ScenarioError(
                "model.lora.dropout",
                f"got {self.lora.dropout:g}; an API answers the same call the same way, and "
                "dropout does not: use 0",
            )
        if "tail" not in self.learns:
            raise ScenarioError("model.learns", "a head that never learns reads nothing; add tail")
        if "head" not in self.learns and self.adapters > 1:
            raise ScenarioError(
                "model.adapters", f"got {self.adapters}, and learns leaves adapters out; use 1"
            )
        return self

    @property
    def learning(self) -> tuple[Owner, ...]:
        return self.learns

    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """A text's tokens; and its pooled state under each set of adapters."""
        self.refuse_misfits(input_shape)
        return input_shape, (self.adapters, self.measures()[0])

    def make_segment(self, asked: SegmentRequest) -> nn.Module:
        """Make the adapters (head), the whole transformer (trunk), or the classification layers
        (tail).
        """
        owner, input_shape, num_classes, seed, scope = asked
        self.shapes(input_shape)
        model, missing = self._whole(num_classes, seed)
        if owner == "tail":
            return ServedTail(self._reader(model, missing, num_classes, seed, scope))
        body, lora = _body_of(model, copied=owner == "trunk"), self.lora
        assert lora is not None, "refused when it is read"
        layout: Layout = {}
        if "head" in self.learns:
            layout = layout_of(body, lora.rank, lora.targets)
        if owner == "trunk":
            return Served(body, layout, lora.alpha / lora.rank, self.pooling)
        return Adapters(layout, self.adapters, seed, scope) if layout else NoAdapters()

    @property
    def pooling(self) -> Pooling:
        """Which token's state a class is read off."""
        return "first" if self.family() in ENCODERS else "last"

    def _whole(self, classes: int, seed: int) -> "tuple[PreTrainedModel, frozenset[str]]":
        encoder = classes if self.family() in ENCODERS else None
        if self.sizes is None:
            return saved(self.folder(), self.revision, encoder)
        with isolated(seed, "model", "trunk"):
            model = drawn(self.sizes, encoder)
        parts = ("classifier", "pooler")  # a client's own, whose draws are not the server's
        fresh = [name for name, _ in model.named_parameters() if any(p in name for p in parts)]
        return model, frozenset(fresh)

    def _reader(
        self,
        model: "PreTrainedModel",
        missing: frozenset[str],
        classes: int,
        seed: int,
        scope: tuple[Scope, ...],
    ) -> nn.Module:
        """As the family has them: of an encoder what is saved, else new ones."""
        family, width = self.family(), model.config.hidden_size
        if family in ENCODERS:
            return classifying(model, missing, seed, scope)
        if family != T5:
            return linear_reader(width, classes, seed, scope)
        from transformers.models.t5.modeling_t5 import T5ClassificationHead

        config: Any = copy.copy(model.config)
        config.num_labels = classes
        with isolated(seed, "model", "reader", *scope):
            return T5ClassificationHead(config)


def _body_of(model: "PreTrainedModel", *, copied: bool) -> nn.Module:
    """The transformer without its output layers and pooler."""
    body: Any = model.base_model
    body = getattr(body, "encoder", body) if model.config.model_type == T5 else body
    if not copied:
        return _without_pooler(copy.copy(body))
    return _without_pooler(copy.deepcopy(body))


def _without_pooler(body: Any) -> nn.Module:  # noqa: ANN401 - the library's classes are untyped
    """The pooler is the client's: a part of its head."""
    if getattr(body, "pooler", None) is not None:
        body._modules = {**body._modules, "pooler": None}
    made: nn.Module = body
    return made
