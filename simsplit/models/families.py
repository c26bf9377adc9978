"""Where the parts of a language model lie, by family, and what stands between them.

A model is more than embedding, layers, norm and output layer: Granite multiplies embeddings and
divides logits, Cohere multiplies logits, Gemma 2 bounds them, and Mistral's layers see a window of
tokens. Whatever is not known here shows when the cut is compared with the whole
(`simsplit.models.exactness`).
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_CUT = (FULL, SLIDING, CHUNKED)
"""The library's names of layers that need no more than a mask; all others carry a state."""


TEXTS = (
    "models built like Llama, Qwen3 or GPT-2; to classify, also bert, roberta, xlm-roberta, "
    "camembert and deberta-v2"
)
IMAGES = "models built like ViT"
"""The models of texts and of images that can be cut, in words."""
PREFIX = "_simsplit_prefix"
"""Attribute of the modules of a model without weights: the prefix of their names in its files."""


class Family(NamedTuple):
    """The names of a model's parts in its body."""

    tokens: str
    layers: str
    norm: str
    needed: tuple[str, ...]
    """Parts by which the family is recognised, next to the others."""
    positions: str | None = None
    """An embedding of positions, instead of rotary angles."""
    dropout: str | None = None
    """The dropout after the embeddings: a layer, or its rate."""


_FAMILIES = (
    Family("embed_tokens", "layers", "norm", ("rotary_emb",), dropout="embedding_dropout"),
    Family("wte", "h", "ln_f", ("wpe",), positions="wpe", dropout="drop"),
    Family("embed_tokens", "layers", "final_layernorm", ("rotary_emb",), dropout="embed_dropout"),
    Family("embed_in", "layers", "final_layer_norm", ("rotary_emb",), dropout="emb_dropout"),
    Family(
        "embed_tokens",
        "layers",
        "final_layer_norm",
        ("embed_positions",),
        positions="embed_positions",
    ),
)
"""Llama's and most others, GPT-2's, Phi's, GPT-NeoX's and OPT's."""


def find_body(model: "PreTrainedModel") -> nn.Module:
    """Return the part of a model that has the embeddings and the layers."""
    body: nn.Module = model.base_model
    decoder = getattr(body, "decoder", None)  # OPT's body is a decoder in a frame
    return decoder if isinstance(decoder, nn.Module) else body


def find_family(model: "PreTrainedModel") -> Family:
    """Return the names of a model's parts, or raise ScenarioError for an unknown architecture."""
    body = find_body(model)
    for family in _FAMILIES:
        names = (family.tokens, family.layers, family.norm, *family.needed)
        if all(isinstance(getattr(body, name, None), nn.Module) for name in names):
            break
    else:
        made = type(model).__name__
        raise ScenarioError("model.name", f"is a {made}, which cannot be cut; allowed: {TEXTS}")
    if others := sorted(set(list_layer_kinds(model.config)) - set(_CUT)):
        raise ScenarioError(
            "model.name",
            f"has layers with {', '.join(others)}, which cannot be cut; allowed: {', '.join(_CUT)}",
        )
    return family


def list_layer_kinds(config: "PreTrainedConfig") -> list[str]:
    """Return the kind of each layer: what its tokens attend to."""
    if kinds := getattr(config, "layer_types", None):
        return list(kinds)
    kind = FULL
    if getattr(config, "sliding_window", None) is not None:
        kind = SLIDING
    elif getattr(config, "attention_chunk_size", None) is not None:
        kind = CHUNKED
    return [kind] * int(config.num_hidden_layers)


def find_dropout(body: nn.Module, family: Family) -> nn.Module | None:
    """Return the dropout after the embeddings, if there is one."""
    found: Any = getattr(body, family.dropout, None) if family.dropout else None
    if isinstance(found, float | int):
        return nn.Dropout(found) if found else None
    return found  # type: ignore[no-any-return]


class ScaledReader(nn.Linear):
    """An output layer whose logits are scaled; its weights have the names of the plain one's."""

    def __init__(
        self, plain: nn.Linear, factor: float | None, divisor: float | None, bound: float | None
    ) -> None:
        """Share the weights of the plain layer."""
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        self.weight, self.bias = plain.weight, plain.bias
        self.factor, self.divisor, self.bound = factor, divisor, bound
        if PREFIX in plain.__dict__:
            self.__dict__[PREFIX] = plain.__dict__[PREFIX]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Scale logits as the whole model does, in the same operations."""
        logits = super().forward(input)
        if self.factor is not None:
            logits = logits * self.factor
        if self.divisor is not None:
            logits = logits / self.divisor
        if self.bound is not None:
            logits = torch.tanh(logits / self.bound) * self.bound
        return logits


def get_token_reader(model: "PreTrainedModel") -> nn.Module:
    """Return the layer that predicts tokens, with what the model does to its logits."""
    reader: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    scales = [getattr(model.config, name, None) for name in names]
    if scales == [None] * len(names) or not isinstance(reader, nn.Linear):
        return reader
    return ScaledReader(reader, *scales)
