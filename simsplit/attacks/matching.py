"""Embeddings that are changed until the pretrained head makes of them what was sent.

Many sessions at once, each with a loss of its own: one that has stopped falling is left where it
was best, so what comes of a session does not depend on those beside it. What stands before may be
kept as the head's cache: a causal head makes of the rest what it makes of the whole.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Adam

from simsplit.models.transformer import Head, layers_of

LEAST_FALL = 1e-3
"""The share by which a loss must fall to count as falling."""


class EmbeddingDescent(NamedTuple):
    """How far embeddings are changed."""

    steps: int
    lr: float
    stop_after: int
    """Steps without a fall after which a session is left; 0: never."""


class Before(NamedTuple):
    """What stands before the tokens that are looked for, as the head keeps it."""

    length: int = 0
    kept: tuple[tuple[Tensor, Tensor], ...] = ()
    """Keys and values, layer by layer, without a graph."""

    @classmethod
    @torch.no_grad()
    def of(cls, head: Head, x_SPD: Tensor) -> "Before":
        """What the head keeps of embeddings that it has read."""
        from transformers import DynamicCache

        if not x_SPD.shape[1]:
            return cls()
        cache = DynamicCache()
        head.onwards(x_SPD, None, cache)
        layers: list[Any] = list(cache.layers[: len(layers_of(head))])
        return cls(x_SPD.shape[1], tuple((each.keys, each.values) for each in layers))

    def onwards(self, head: Head, x_SLD: Tensor) -> Tensor:
        """What the head makes of embeddings that follow."""
        if not self.length:
            return head.onwards(x_SLD)
        from transformers import DynamicCache

        cache, mask = DynamicCache(), None
        for layer, (keys, values) in enumerate(self.kept):
            cache.update(keys, values, layer)
        if not self.kept:  # without layers a cache cannot say where the tokens stand
            shape = (len(x_SLD), self.length + x_SLD.shape[1])
            mask = torch.ones(shape, dtype=torch.bool, device=x_SLD.device)
        return head.onwards(x_SLD, mask, cache)


class HeadTarget(NamedTuple):
    """What the head is to put out, and where."""

    sent: Tensor
    """S x L x D."""
    real: Tensor
    """S x L."""

    def losses(self, made: Tensor) -> Tensor:
        """The mean squared error of each session, S."""
        squares = (made - self.sent).square().mean(-1) * self.real
        return squares.sum(1) / self.real.sum(1).clamp(min=1)


def matched(
    start: Tensor, onwards: Callable[[Tensor], Tensor], aim: HeadTarget, how: EmbeddingDescent
) -> Generator[None, None, Tensor]:
    """Step by step, and in the end what came nearest of all, session by session.

    `onwards` takes what is changed (rows are sessions) to what the head makes of it.
    """
    moving = start.clone().requires_grad_()
    adam = Adam([moving], lr=how.lr)
    best, least = start.clone(), torch.full_like(start[:, 0, 0], torch.inf)
    falling, stale = least.clone(), torch.zeros_like(least)
    active = torch.ones_like(least, dtype=torch.bool)
    for step in range(how.steps + 1):
        with torch.enable_grad():
            losses = aim.losses(onwards(moving))
        found = losses.detach()
        nearer = active & (found < least)
        best[nearer], least = moving.detach()[nearer], torch.where(nearer, found, least)
        falls = found < falling * (1 - LEAST_FALL)
        falling = torch.where(falls, found, falling)
        stale = torch.where(falls, 0, stale + 1)
        if how.stop_after:
            active &= stale < how.stop_after
        if step == how.steps or not active.any():
            break
        losses.sum().backward(inputs=[moving])
        adam.step()
        adam.zero_grad()
        yield
    return best


@torch.no_grad()
def nearest(x_SLD: Tensor, embeddings_VD: Tensor) -> Tensor:
    """The token whose embedding points most alike, S x L."""
    unit_DV = normalize(embeddings_VD, dim=-1).T
    return torch.stack([(row @ unit_DV).argmax(-1) for row in normalize(x_SLD, dim=-1)])
