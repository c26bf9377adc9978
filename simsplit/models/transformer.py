"""A transformer of the transformers library, cut in three exactly, with padding and caches.

Each segment builds masks, positions and rotary angles once for all of its layers of a kind, as the
whole model does. The masks are those of the library for that kind: causal, or a sliding window.
Padding on the right needs no mask, since under causal attention no real token attends to it.
Padding on the left does, so all segments get the mask. Layers count from 0 in each segment, since
each segment has a separate cache, which asks its first layer how many tokens it has seen.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.models.families import (
    Family,
    find_body,
    find_dropout,
    find_family,
    list_layer_kinds,
)
from simsplit.seeds import Scope, isolate

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig, PreTrainedModel


class Blocks(nn.Module):
    """Consecutive layers of a model."""

    def __init__(
        self,
        config: "PreTrainedConfig",
        layers: Iterable[nn.Module],
        rotary: nn.Module | None,
        kinds: Sequence[str],
    ) -> None:
        """Take the layers, and the kind of each: what its tokens attend to."""
        super().__init__()
        self.config, self.kinds = config, tuple(kinds)
        self.layers = nn.ModuleList(layers)
        self.rotary = rotary
        self.cached_as = _find_cache_name(self.layers)
        self.computes_in = torch.float32
        """The type of the layers' states; what crosses is float32 all the same."""
        # Gemma 3's rotary angles differ by the kind of layer.
        self.turns_by_kind = rotary is not None and "layer_type" in _list_arguments(rotary)

    def forward(
        self, x_BLD: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        """Apply all layers; `mask` marks the tokens, those in `past` included, that are real."""
        if not len(self.layers):
            return x_BLD if self.computes_in == torch.float32 else x_BLD.float()
        if self.computes_in != torch.float32:
            x_BLD = x_BLD.to(self.computes_in)
        from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING

        positions = compute_positions(x_BLD, mask, past)
        masks, angles = {}, {}
        # The library reads the positions' values, which tensors on the device "meta" do not have.
        known = None if x_BLD.is_meta else positions
        for kind in dict.fromkeys(self.kinds):
            make_mask = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING[kind]
            masks[kind] = make_mask(self.config, x_BLD, mask, past, known)
            if self.rotary is not None:
                own = {"layer_type": kind} if self.turns_by_kind else {}
                angles[kind] = self.rotary(x_BLD, position_ids=positions, **own)
        given: dict[str, Any] = {"position_ids": positions, self.cached_as: past}
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            if self.rotary is not None:
                given["position_embeddings"] = angles[kind]
            x_BLD = layer(
                x_BLD,
                attention_mask=masks[kind],
                use_cache=past is not None,
                **given,
            )
        # Without loss: the next segment computes in its own type, methods in float32.
        return x_BLD.float() if self.computes_in != torch.float32 else x_BLD

    def enter(self, passed: int) -> "Blocks":
        """Return the layers behind the first ones: the same modules, not copies."""
        rest = Blocks(self.config, self.layers[passed:], self.rotary, self.kinds[passed:])
        rest.computes_in = self.computes_in
        return rest


def _find_cache_name(layers: Iterable[nn.Module]) -> str:
    """Return the name of the layers' argument for a cache, which differs by family and version."""
    taken = [_list_arguments(layer) for layer in layers]
    for name in ("cache", "layer_past"):
        if all(name in names for names in taken):
            return name
    return "past_key_values"


def _list_arguments(module: nn.Module) -> Iterable[str]:
    return inspect.signature(module.forward).parameters


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
        # Granite's factor on embeddings, which is not a part of the embedding layer.
        scale: Any = getattr(body, "embedding_multiplier", None)
        self.scale = None if scale is None else float(scale)
        self.positions = getattr(body, family.positions) if family.positions else None
        self.dropout = find_dropout(body, family)

    def forward(
        self, ids_BL: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        return self.forward_embedded(self.tokens(ids_BL), mask, past)

    def forward_embedded(
        self, x_BLD: Tensor, mask: Tensor | None = None, past: "Cache | None" = None
    ) -> Tensor:
        """Continue from embeddings of tokens: add positions, and apply the layers."""
        if self.scale is not None:
            x_BLD = x_BLD * self.scale
        if self.positions is not None:
            places = compute_positions(x_BLD, mask, past)
            if hasattr(self.positions, "offset"):  # OPT's, which computes them unless named
                x_BLD = x_BLD + self.positions(None, position_ids=places)
            else:
                x_BLD = x_BLD + self.positions(places)
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
        if self.blocks.computes_in == torch.float32:
            out: Tensor = self.reader(self.norm(out_BLD[:, -1:] if last else out_BLD))
            return out
        out_BLD = self.norm((out_BLD[:, -1:] if last else out_BLD).to(self.blocks.computes_in))
        # A classification layer that learns is in float32.
        out = self.reader(out_BLD.to(next(self.reader.parameters()).dtype))
        return out.float()


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
    family, body = find_family(model), find_body(model)
    layers: nn.ModuleList = getattr(body, family.layers)
    own = cut.layers_of(owner, len(layers))
    kinds = list_layer_kinds(model.config)[own]
    blocks = Blocks(model.config, layers[own], getattr(body, "rotary_emb", None), kinds)
    segment: Head | Blocks | Tail = blocks
    if owner == "head":
        segment = Head(getattr(body, family.tokens), blocks, family, body)
    elif owner == "tail":
        segment = Tail(blocks, getattr(body, family.norm), reader)
    segment = copy.deepcopy(segment)
    for index, layer in enumerate(get_layers(segment)):
        for part in layer.children():
            if hasattr(part, "layer_idx"):  # attention: its place in the segment's own cache
                part.layer_idx = index  # type: ignore[assignment]
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
