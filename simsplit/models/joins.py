"""Joins of several heads' outputs, where parties hold columns of the same samples.

Outputs are joined along the first axis of a sample: the values of a row, the channels of an image,
the tokens of a text. A trunk of values or channels gets a wider first layer for it; attention takes
any number of tokens.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError

Join = Literal["concat", "sum", "mean"]
Shape = tuple[int, ...]
_TOKENS = 2
"""Number of axes of a sample that is a sequence of tokens."""
FIELD = "vertical.join"


def join_shapes(shapes: Sequence[Shape], how: Join) -> Shape:
    """Return the shape of the joined outputs; raise ScenarioError if they do not fit together.

    >>> join_shapes([(8,), (8,)], "concat"), join_shapes([(8,), (8,)], "sum")
    ((16,), (8,))
    """
    fixed = 1 if how == "concat" else 0
    if len({shape[fixed:] for shape in shapes}) > 1:
        raise ScenarioError(
            "data.partition",
            f"heads put out {' and '.join(map(_format, dict.fromkeys(shapes)))}, which "
            f"join: {how} cannot put together; give parties parts of one size",
        )
    first = sum(shape[0] for shape in shapes) if how == "concat" else shapes[0][0]
    return (first, *shapes[0][1:])


def join_parts(parts: Sequence[Tensor], how: Join) -> Tensor:
    """Join the outputs of all parties' heads, in their order."""
    if len(parts) == 1:
        return parts[0]
    if how == "concat":
        return torch.cat(list(parts), dim=1)
    total = torch.stack(list(parts)).sum(0)
    return total if how == "sum" else total / len(parts)


def widen_first(trunk: nn.Module, width: int) -> nn.Module:
    """Return a layout of the trunk whose first layer takes so many values, or channels.

    Raise ScenarioError for a trunk that begins with anything but a linear layer or a convolution.
    """
    first, *others = trunk.children()
    if isinstance(first, nn.Linear):
        wider: nn.Module = nn.Linear(
            width, first.out_features, bias=first.bias is not None, device="meta"
        )
    elif isinstance(first, nn.Conv2d) and first.groups == 1:
        wider = nn.Conv2d(
            width,
            first.out_channels,
            first.kernel_size,  # type: ignore[arg-type]
            stride=first.stride,  # type: ignore[arg-type]
            padding=first.padding,  # type: ignore[arg-type]
            bias=first.bias is not None,
            device="meta",
        )
    else:
        raise ScenarioError(
            FIELD,
            f"got concat, and the trunk begins with {type(first).__name__}, which takes outputs of "
            "one head; use sum or mean, or a model whose trunk begins with a linear layer or a "
            "convolution",
        )
    return nn.Sequential(wider, *others)


def has_tokens(shape: Shape) -> bool:
    """Return whether a sample of this shape is a sequence of tokens."""
    return len(shape) == _TOKENS


def _format(shape: Shape) -> str:
    return "x".join(map(str, shape))
