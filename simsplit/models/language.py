"""Language models cut in three: made like Llama, Qwen3 or GPT-2, and encoders like BERT.

Weights come from a folder or the hub, from the small models that simsplit pretrains itself
(`simsplit/demo`), or from draws (`sizes`). Tied input and output embeddings are untied, for
head and tail learn separately.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.models.encoders import ENCODERS, classifying, encoder_segment
from simsplit.models.fresh import InputShape, Owner, SegmentRequest, Shape
from simsplit.models.lora import adapted
from simsplit.models.text_model import Lora, TextModel
from simsplit.models.transformer import Cut, linear_reader, segment_of
from simsplit.models.whole import T5, drawn, saved
from simsplit.seeds import Scope, isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LanguageConfig(TextModel):
    """Options of both kinds of language models."""

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

    @property
    def learning(self) -> tuple[Owner, ...]:
        return self.learns

    def shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        """Both shapes are a text's tokens by the model's width."""
        self.refuse_misfits(input_shape)
        width, layers, _ = self.measures()
        (length,) = input_shape
        if self.head + self.tail >= layers:
            raise ScenarioError(
                "model.head" if self.sizes is None else "model.sizes.layers",
                f"must leave the trunk a layer or more, got head: {self.head}, tail: {self.tail} "
                f"of {layers} layers",
            )
        return (length, width), (length, width)

    def make_segment(self, asked: SegmentRequest) -> nn.Module:
        """Copy a segment out of the whole model; of a random one, each has its own draws."""
        owner, input_shape, num_classes, seed, scope = asked
        self.shapes(input_shape)
        classes, missing = num_classes if self.encodes() else None, frozenset[str]()
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

    @property
    def classifies(self) -> bool:
        """Whether it predicts classes rather than tokens."""
        return self.word == "sequence_classifier"

    def encodes(self) -> bool:
        """Whether the model is an encoder; ScenarioError where the kind asks for tokens."""
        family = self.family()
        if family == T5:
            raise ScenarioError(
                "model.name" if self.sizes is None else "model.sizes.family",
                "got a T5, which is not cut; it can be served whole: model: "
                "{kind: adapted_classifier}, with topology: api",
            )
        if family in ENCODERS and not self.classifies:
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
        return linear_reader(model.config.hidden_size, classes, seed, scope)


class CausalLM(LanguageConfig):
    """A causal language model: the head embeds tokens, the tail predicts the next one."""

    kind: Literal["causal_lm"] = "causal_lm"


class SequenceClassifier(LanguageConfig):
    """A model that predicts a text's class: at its last token, and an encoder at its first."""

    kind: Literal["sequence_classifier"] = "sequence_classifier"
