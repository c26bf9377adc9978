"""Texts must fit into the model's positions, with the tokens that methods add to them."""

from collections.abc import Iterator, Sequence

from simsplit.data import DataConfig
from simsplit.data.texts import TextTable
from simsplit.errors import ScenarioError
from simsplit.methods import MethodConfig


def refuse_overlong(data: DataConfig, methods: Sequence[MethodConfig], positions: int) -> None:
    """Raise ScenarioError if public texts or a method's added tokens exceed the positions.

    The model itself checks that private texts fit.
    """
    if data.public is not None and data.public.length > positions:
        raise ScenarioError(
            "data.public.length",
            f"must be at most the model's {positions} positions, got {data.public.length}",
        )
    room = positions
    for index, method in enumerate(methods):
        for field, length in _list_lengths(data) if method.added_tokens else ():
            if length + method.added_tokens > room:
                raise ScenarioError(
                    f"method.{index}.tokens",
                    f"must be at most {max(0, room - length)}: {field} is {length}, and the model "
                    f"has {positions} positions; got {method.added_tokens}",
                )
        # Each method adds its tokens to texts that the methods before have lengthened.
        room -= method.added_tokens


def _list_lengths(data: DataConfig) -> Iterator[tuple[str, int]]:
    """Yield the lengths of the texts to which methods add tokens, private and support ones."""
    mixed_in = "public" if data.support is None else "support"
    for name in ("source", mixed_in):
        source = getattr(data, name)
        if isinstance(source, TextTable):
            yield f"data.{name}.length", source.length
