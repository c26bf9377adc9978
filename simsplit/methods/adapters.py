"""ADMI's adapter, which refines the trunk's output T with the head's output H (PIDI, 2026, 5.2.1).

An encoder reads H, and a decoder reads T and the encoder's output; both are one transformer layer.
The decoder adds its output to T, and that output is zero at first. All attention is causal, so no
token of the result depends on a later one. There are no position embeddings: H and T contain the
positions already.

In a session each layer keeps its keys and values, as the model's own layers do.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from simsplit.methods.method import Step


class Attention(nn.Module):
    """Causal attention of tokens to a context of the same length."""

    def __init__(self, width: int, heads: int, name: str) -> None:
        super().__init__()
        self.heads, self.name = heads, name
        self.queries, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pairs = nn.Linear(width, 2 * width)

    def forward(self, x_BLD: Tensor, context_BLD: Tensor, step: Step) -> Tensor:
        """Let each token of `x` attend to the tokens of `context` up to its own position."""
        queries, keys, values = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.queries(x_BLD), *self.pairs(context_BLD).chunk(2, dim=-1))
        )
        mask = step.mask
        if step.session is not None:
            past: Any = step.session.get_cache(self.name)
            keys, values = past.update(keys, values, 0)
            mask = step.session.mask
        allowed = make_attention_mask(queries.shape[2], keys.shape[2], mask, keys.device)
        read = scaled_dot_product_attention(queries, keys, values, attn_mask=allowed)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out


def make_attention_mask(
    new: int, every: int, mask_BS: Tensor | None, device: torch.device
) -> Tensor:
    """Return which of `every` tokens each of the last `new` ones may attend to."""
    back = every - new
    causal_LS = torch.ones(new, every, dtype=torch.bool, device=device).tril(back)
    if mask_BS is None:
        return causal_LS
    # Padding attends to itself, since a row without any allowed token would become NaN.
    itself_LS = causal_LS & ~causal_LS.tril(-1 + back)
    return ((causal_LS & mask_BS[:, None].to(device)) | itself_LS)[:, None]


class FeedForward(nn.Module):
    """The part of a transformer layer that processes each token separately."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(gelu(self.into(self.norm(x))))
        return out


class Adapter(nn.Module):
    """An encoder of H, and a decoder of T and the encoded H."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.encoding = Attention(width, heads, "adapter encoder")
        self.decoding = Attention(width, heads, "adapter decoder")
        self.crossing = Attention(width, heads, "adapter memory")
        self.encoded, self.decoded = FeedForward(width), FeedForward(width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def encode(self, head_BLD: Tensor, step: Step) -> Tensor:
        """Encode H into the memory that the decoder attends to."""
        near = self.norms[0](head_BLD)
        made: Tensor = self.encoded(head_BLD + self.encoding(near, near, step))
        return self.norms[1](made)  # type: ignore[no-any-return]

    def refine(self, trunk_BLD: Tensor, memory_BLD: Tensor, step: Step) -> Tensor:
        """Add the decoder's output to T."""
        near = self.norms[2](trunk_BLD)
        x = trunk_BLD + self.decoding(near, near, step)
        x = self.decoded(x + self.crossing(self.norms[3](x), memory_BLD, step))
        out: Tensor = trunk_BLD + self.out(self.norms[4](x))
        return out
