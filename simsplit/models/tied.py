"""One table of tokens for both ends of a language model, where the whole model has one.

Such a model (`tie_word_embeddings`) reads its last states with the table that embeds its tokens. A
party that has both ends then has one parameter: the gradients of both ends add up in it, and its
optimizer takes one step.
"""

from typing import cast

import torch
from torch import nn

TABLE, COPY = "head.tokens.weight", "tail.reader.weight"
"""The name of the one table, and the name that it has in the tail."""


def can_tie(head: nn.Module, tail: nn.Module) -> bool:
    """Return whether two ends hold equal tables, as segments of a tied model do when made."""
    one, other = _find_tables(head, tail)
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    # Saved tables that differ are two, whatever the configuration says: the library does so, too.
    return one.is_meta or other.is_meta or torch.equal(one.cpu(), other.cpu())


def tie(head: nn.Module, tail: nn.Module) -> None:
    """Let a head embed tokens with the table that its tail reads with."""
    # The head takes the tail's: heads of several depths have one tail.
    cast("nn.Module", head.tokens).weight = cast("nn.Module", tail.reader).weight


def untie(head: nn.Module) -> None:
    """Give a head a table of its own again, with the same values."""
    tokens = cast("nn.Module", head.tokens)
    table = cast("nn.Parameter", tokens.weight)
    tokens.weight = nn.Parameter(table.detach().clone(), table.requires_grad)


def are_tied(head: nn.Module, tail: nn.Module) -> bool:
    """Return whether two ends hold one table."""
    one, other = _find_tables(head, tail)
    return one is not None and one is other


def list_learning(head: nn.Module, tail: nn.Module) -> list[str]:
    """List the ends whose table learns."""
    tables = zip(("head", "tail"), _find_tables(head, tail), strict=True)
    return [name for name, table in tables if table is not None and table.requires_grad]


def _find_tables(head: nn.Module, tail: nn.Module) -> tuple[nn.Parameter | None, ...]:
    """Return the table of each end; None where it has none."""
    layers = getattr(head, "tokens", None), getattr(tail, "reader", None)
    tables = (getattr(layer, "weight", None) for layer in layers)
    return tuple(each if isinstance(each, nn.Parameter) else None for each in tables)
