"""Segments whose passes are too costly for a forecast are replaced by others of the same shapes.

What crosses depends on a segment's shapes alone, so a stand-in returns random numbers, and its
weights get gradients of zeros. Methods, optimizers and the protocol around it are the run's own. A
head still embeds its tokens, which costs nothing, since methods may look at embeddings.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class _MadeUp(torch.autograd.Function):
    """Returns numbers that are made up, with gradients of zeros for all that they stand for."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, *inputs: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        ctx.inputs = inputs
        return made

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Any:  # noqa: ANN401
        inputs: tuple[Tensor, ...] = ctx.inputs  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad[1:]  # type: ignore[attr-defined]
        zeros = [torch.zeros_like(x) if n else None for x, n in zip(inputs, needed, strict=True)]
        return None, *zeros


@contextmanager
def replace_segments(segments: Mapping[nn.Module, Tensor], lead: int) -> Iterator[None]:
    """Open a context in which segments only return random numbers in the form of these outputs.

    The first `lead` axes, samples and tokens of texts, are as long as the input's.
    """
    before = {segment: segment.__dict__.get("forward") for segment in segments}
    for segment, output in segments.items():
        segment.__dict__["forward"] = MethodType(_make_forward(output, lead), segment)
    try:
        yield
    finally:
        for segment, forward in before.items():
            del segment.__dict__["forward"]
            if forward is not None:
                segment.__dict__["forward"] = forward


def _make_forward(output: Tensor, lead: int) -> Any:  # noqa: ANN401 - a method of any module
    def forward(self: nn.Module, x: Tensor, *_beside: object, **_options: object) -> Tensor:
        made = torch.randn(*x.shape[:lead], *output.shape[lead:]).to(output.dtype)
        weights = [weight for weight in self.parameters() if weight.requires_grad]
        tokens = getattr(self, "tokens", None)
        if isinstance(tokens, nn.Module) and not x.is_floating_point():
            x = tokens(x)
        given = [x] if x.is_floating_point() else []
        made_up: Tensor = _MadeUp.apply(made, *given, *weights)
        return made_up

    return forward
