"""The optimization of embeddings until the pretrained head's output matches the sent one.

Many sessions are optimized at once, each with its own loss. A session whose loss no longer falls
keeps its best embeddings, so its result does not depend on the other sessions. Earlier tokens can
be kept as the head's cache: a causal head computes the same outputs from the cache and the rest as
from the whole text.
"""

from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Adam

from simsplit.machine import Autocast
from simsplit.models.transformer import Head, get_layers

LEAST_FALL = 1e-3
"""The share by which a loss must fall to count as falling."""


class EmbeddingDescent(NamedTuple):
    """The settings of an optimization of embeddings."""

    steps: int
    """Maximum number of steps."""
    lr: float
    stop_after: int
    """A session stops after this many steps without a fall; 0: never."""
    autocast: Autocast = nullcontext
    """The context in which the head's output is computed; the loss is always of fp32."""


class Before(NamedTuple):
    """The tokens before those under optimization, as the head's cache."""

    length: int = 0
    kept: tuple[tuple[Tensor, Tensor], ...] = ()
    """Keys and values, layer by layer, without a graph."""

    @classmethod
    @torch.no_grad()
    def of(cls, head: Head, x_SPD: Tensor) -> "Before":
        """Build the cache of the head for these embeddings."""
        from transformers import DynamicCache

        if not x_SPD.shape[1]:
            return cls()
        cache = DynamicCache()
        head.forward_embedded(x_SPD, None, cache)
        layers: list[Any] = list(cache.layers[: len(get_layers(head))])
        return cls(x_SPD.shape[1], tuple((each.keys, each.values) for each in layers))

    def repeat(self, times: int) -> "Before":
        """Return the cache with each row so many times in a row."""
        again = (
            (k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in self.kept
        )
        return Before(self.length, tuple(again))

    def onwards(self, head: Head, x_SLD: Tensor) -> Tensor:
        """Compute the head's output for the embeddings that follow."""
        # A fresh cache in each call: the head would append to a shared one.
        if not self.length:
            return head.forward_embedded(x_SLD)
        from transformers import DynamicCache

        cache, mask = DynamicCache(), None
        for layer, (keys, values) in enumerate(self.kept):
            cache.update(keys, values, layer)
        if not self.kept:  # without layers a cache cannot say where the tokens stand
            shape = (len(x_SLD), self.length + x_SLD.shape[1])
            mask = torch.ones(shape, dtype=torch.bool, device=x_SLD.device)
        return head.forward_embedded(x_SLD, mask, cache)


class HeadTarget(NamedTuple):
    """The output that the head should have."""

    sent: Tensor
    """S x L x D."""
    real: Tensor
    """S x L: the positions that count."""

    def losses(self, output: Tensor) -> Tensor:
        """Compute the mean squared error of each session's output, S."""
        squares = (output - self.sent).square().mean(-1) * self.real
        return squares.sum(1) / self.real.sum(1).clamp(min=1)


def match_target(
    start: Tensor, onwards: Callable[[Tensor], Tensor], aim: HeadTarget, how: EmbeddingDescent
) -> Generator[None, None, Tensor]:
    """Optimize step by step, and return the values with the lowest loss of each session.

    Rows of `start` are sessions. `onwards` computes the head's output from the optimized values.
    """
    moving = start.clone().requires_grad_()
    adam = Adam([moving], lr=how.lr)
    best, least = start.clone(), torch.full_like(start[:, 0, 0], torch.inf)
    falling, stale = least.clone(), torch.zeros_like(least)
    active = torch.ones_like(least, dtype=torch.bool)
    # Once more than there are steps, so that the values after the last one are judged too.
    for step in range(how.steps + 1):
        with torch.enable_grad():
            with how.autocast():
                output = onwards(moving)
            losses = aim.losses(output.float())
        present = losses.detach()
        nearer = active & (present < least)
        # The loss need not fall monotonically, so the best values are kept, not the last ones.
        best[nearer], least = moving.detach()[nearer], torch.where(nearer, present, least)
        falls = present < falling * (1 - LEAST_FALL)
        falling = torch.where(falls, present, falling)
        stale = torch.where(falls, 0, stale + 1)
        if how.stop_after:
            active &= stale < how.stop_after
        if step == how.steps or not active.any():
            break
        # A sum: no session's gradient depends on how many others there are.
        losses.sum().backward(inputs=[moving])
        adam.step()
        adam.zero_grad()
        yield
    return best


@torch.no_grad()
def find_nearest(x_SLD: Tensor, embeddings_VD: Tensor) -> Tensor:
    """Find the tokens whose embeddings have the most similar direction, S x L."""
    unit_DV = normalize(embeddings_VD, dim=-1).T
    return torch.stack([(row @ unit_DV).argmax(-1) for row in normalize(x_SLD, dim=-1)])
