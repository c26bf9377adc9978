"""ADMI's adapter: what the trunk made of a text, refined by what the head had put out for it.

An encoder reads the head's output H, a decoder reads the trunk's output T beside it; what it adds
to T starts as nothing. Each is one transformer layer. All attention is causal, so that no token of
what comes out has seen a later one. Positions are not told again: H and T have them.

In a session each layer keeps its keys and values, as the model's own layers do.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from simsplit.methods.base import Step


class Attention(nn.Module):
    """Causal attention of tokens to a context that has one place for each of them."""

    def __init__(self, width: int, heads: int, name: str) -> None:
        super().__init__()
        self.heads, self.name = heads, name
        self.queries, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pairs = nn.Linear(width, 2 * width)

    def forward(self, x_BLD: Tensor, context_BLD: Tensor, step: Step) -> Tensor:
        """What each token of `x` reads in `context`, up to its own place."""
        queries, keys, values = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.queries(x_BLD), *self.pairs(context_BLD).chunk(2, dim=-1))
        )
        mask = step.mask
        if step.session is not None:
            past: Any = step.session.past(self.name)
            keys, values = past.update(keys, values, 0)
            mask = step.session.mask
        allowed = may_read(queries.shape[2], keys.shape[2], mask, keys.device)
        read = scaled_dot_product_attention(queries, keys, values, attn_mask=allowed)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out


def may_read(new: int, every: int, mask_BS: Tensor | None, device: torch.device) -> Tensor:
    """Which of all tokens the last `new` ones attend to; padding is read by itself alone."""
    back = every - new
    causal_LS = torch.ones(new, every, dtype=torch.bool, device=device).tril(back)
    if mask_BS is None:
        return causal_LS
    itself_LS = causal_LS & ~causal_LS.tril(-1 + back)
    return ((causal_LS & mask_BS[:, None].to(device)) | itself_LS)[:, None]


class Feed(nn.Module):
    """A layer's network for each token by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(gelu(self.into(self.norm(x))))
        return out


class Adapter(nn.Module):
    """Encoder of H, and decoder of T beside what was encoded."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.encoding = Attention(width, heads, "adapter encoder")
        self.decoding = Attention(width, heads, "adapter decoder")
        self.crossing = Attention(width, heads, "adapter memory")
        self.encoded, self.decoded = Feed(width), Feed(width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def remembered(self, head_BLD: Tensor, step: Step) -> Tensor:
        """The encoder's output: what the decoder is told of H."""
        near = self.norms[0](head_BLD)
        made: Tensor = self.encoded(head_BLD + self.encoding(near, near, step))
        return self.norms[1](made)  # type: ignore[no-any-return]

    def refined(self, trunk_BLD: Tensor, memory_BLD: Tensor, step: Step) -> Tensor:
        """T, and what the decoder adds to it."""
        near = self.norms[2](trunk_BLD)
        x = trunk_BLD + self.decoding(near, near, step)
        x = self.decoded(x + self.crossing(self.norms[3](x), memory_BLD, step))
        out: Tensor = trunk_BLD + self.out(self.norms[4](x))
        return out
