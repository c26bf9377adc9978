"""A transformer of the transformers library, cut in three exactly, with padding and caches.

Each segment builds causal mask, positions and rotary angles once for all of its layers, as the
whole model does. Padding on the right needs no mask, since under causal attention no real token
attends to it. Padding on the left does, so all segments get the mask. Layers count from 0 in each
segment, since each segment has a separate cache, which asks its first layer how many tokens it has
seen.
"""

import copy
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.seeds import Scope, isolate

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig, PreTrainedModel


class Family(NamedTuple):
    """The names of a model's parts in its body."""

    tokens: str
    layers: str
    norm: str
    positions: str | None = None
    """An embedding of positions, instead of rotary angles."""
    dropout: str | None = None
    attention: str = "self_attn"


ROTARY = Family("embed_tokens", "layers", "norm")
GPT2 = Family("wte", "h", "ln_f", positions="wpe", dropout="drop", attention="attn")


def find_family(model: "PreTrainedModel") -> Family:
    """Return the names of a model's parts, or raise ScenarioError for an unknown architecture."""
    body = model.base_model
    for family, needed in ((ROTARY, "rotary_emb"), (GPT2, "wpe")):
        if all(hasattr(body, name) for name in (family.tokens, family.layers, needed)):
            kinds = set(getattr(model.config, "layer_types", None) or ())
            if kinds <= {"full_attention"}:
                return family
            other = ", ".join(sorted(kinds - {"full_attention"}))
            raise ScenarioError(
                "model.name",
                f"has layers with {other}, which cannot be cut; allowed: full_attention",
            )
    made = type(model).__name__
    raise ScenarioError(
        "model.name",
        f"is a {made}, which cannot be cut; allowed: models built like Llama, Qwen3 or GPT-2",
    )


class Blocks(nn.Module):
    """Consecutive layers of a model."""

    def __init__(
        self, config: "PreTrainedConfig", layers: Iterable[nn.Module], rotary: nn.Module | None
    ) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        self.rotary = rotary
        self.cached_as = "cache" if all(map(_takes_cache, self.layers)) else "past_key_values"

    def forward(
        self, x_BLD: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        """Apply all layers; `mask` marks the tokens, those in `past` included, that are real."""
        if not len(self.layers):
            return x_BLD
        from transformers.masking_utils import create_causal_mask

        positions = compute_positions(x_BLD, mask, past)
        attended = create_causal_mask(self.config, x_BLD, mask, past, positions)
        given: dict[str, Any] = {"position_ids": positions, self.cached_as: past}
        if self.rotary is not None:
            given["position_embeddings"] = self.rotary(x_BLD, position_ids=positions)
        for layer in self.layers:
            x_BLD = layer(
                x_BLD,
                attention_mask=attended,
                use_cache=past is not None,
                **given,
            )
        return x_BLD


def _takes_cache(layer: nn.Module) -> bool:
    """Return whether the layer's argument is called `cache`, as from transformers 5.24 on."""
    return "cache" in inspect.signature(layer.forward).parameters


def compute_positions(x: Tensor, mask: Tensor | None, past: "Cache | None") -> Tensor:
    """Return the positions of the tokens, counted from the first real one."""
    length = x.shape[1]
    # The mask covers all tokens so far. It comes first, since the cache of a segment without layers
    # is always empty.
    if mask is not None:
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
    seen = past.get_seq_length() if past is not None else 0
    return torch.arange(seen, seen + length, device=x.device)[None]


class Head(nn.Module):
    """The embedding of tokens, and the first layers."""

    def __init__(self, tokens: nn.Module, blocks: Blocks, family: Family, body: nn.Module) -> None:
        super().__init__()
        self.tokens = tokens
        self.blocks = blocks
        self.positions = getattr(body, family.positions) if family.positions else None
        self.dropout = getattr(body, family.dropout) if family.dropout else None

    def forward(
        self, ids_BL: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        """Embed the tokens, and apply the layers."""
        return self.forward_embedded(self.tokens(ids_BL), mask, past)

    def forward_embedded(
        self, x_BLD: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        """Continue from embeddings of tokens: add positions, and apply the layers."""
        if self.positions is not None:
            x_BLD = x_BLD + self.positions(compute_positions(x_BLD, mask, past))
        if self.dropout is not None:
            x_BLD = self.dropout(x_BLD)
        out: Tensor = self.blocks(x_BLD, mask, past)
        return out


class Tail(nn.Module):
    """The last layers, the norm, and the output layer (tokens or classes) at every position."""

    def __init__(self, blocks: Blocks, norm: nn.Module, reader: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm, self.reader = blocks, norm, reader

    def forward(
        self,
        x_BLD: Tensor,
        mask: Tensor | None = None,
        past: "Cache | None" = None,
        last: bool = False,
    ) -> Tensor:
        """Return logits at every position, or only at the last, which is faster in writing."""
        out_BLD = self.blocks(x_BLD, mask, past)
        out: Tensor = self.reader(self.norm(out_BLD[:, -1:] if last else out_BLD))
        return out


class Cut(NamedTuple):
    """The numbers of layers in head and tail."""

    head: int
    tail: int
    skips_trunk: bool = False
    """Whether the layers between them are left out."""

    def layers_of(self, owner: str, count: int) -> slice:
        """Return which of a model's `count` layers a segment has."""
        first, last = self.head, count - self.tail
        if owner == "head":
            return slice(0, first)
        if owner == "tail":
            return slice(last, count)
        return slice(first, first if self.skips_trunk else last)


def copy_segment(model: "PreTrainedModel", owner: str, cut: Cut, reader: nn.Module) -> nn.Module:
    """Copy one segment; weights that the whole model shares between head and tail become two."""
    family, body = find_family(model), model.base_model
    layers: nn.ModuleList = getattr(body, family.layers)
    own = layers[cut.layers_of(owner, len(layers))]
    blocks = Blocks(model.config, own, getattr(body, "rotary_emb", None))
    segment: Head | Blocks | Tail = blocks
    if owner == "head":
        segment = Head(getattr(body, family.tokens), blocks, family, body)
    elif owner == "tail":
        segment = Tail(blocks, getattr(body, family.norm), reader)
    segment = copy.deepcopy(segment)
    for index, layer in enumerate(get_layers(segment)):
        getattr(layer, family.attention).layer_idx = index
    return segment


def build_linear_reader(width: int, classes: int, seed: int, scope: tuple[Scope, ...]) -> nn.Module:
    """Draw a linear layer that predicts classes from a token's state."""
    with isolate(seed, "model", "reader", *scope):
        layer = nn.Linear(width, classes, bias=False)
        nn.init.normal_(layer.weight, std=0.02)
    return layer


def get_layers(segment: nn.Module) -> nn.ModuleList:
    """Return the transformer layers of a segment, also of an encoder's."""
    blocks: Any = segment if hasattr(segment, "layers") else segment.blocks
    layers: nn.ModuleList = blocks.layers
    return layers


def use_eager_attention(segment: nn.Module) -> nn.Module:
    """Switch a segment to attention that can be differentiated twice, in place."""
    for module in segment.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = "eager"
    return segment
