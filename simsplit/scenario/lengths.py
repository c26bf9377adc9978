"""Texts must fit into the positions of the model, with all that methods add to them."""

from collections.abc import Iterator, Sequence

from simsplit.data import DataConfig
from simsplit.data.texts import TextTable
from simsplit.errors import ScenarioError
from simsplit.methods import MethodConfig


def refuse_overlong(data: DataConfig, methods: Sequence[MethodConfig], positions: int) -> None:
    """ScenarioError for public texts, or tokens that a method adds, that have no position.

    That private texts fit by themselves is for the model's own check.
    """
    if data.public is not None and data.public.length > positions:
        raise ScenarioError(
            "data.public.length",
            f"must be at most the model's {positions} positions, got {data.public.length}",
        )
    room = positions
    for index, method in enumerate(methods):
        for field, length in _lengthened(data) if method.added_tokens else ():
            if length + method.added_tokens > room:
                raise ScenarioError(
                    f"method.{index}.tokens",
                    f"must be at most {max(0, room - length)}: {field} is {length}, and the model "
                    f"has {positions} positions; got {method.added_tokens}",
                )
        room -= method.added_tokens


def _lengthened(data: DataConfig) -> Iterator[tuple[str, int]]:
    """The fields that limit the texts to which methods add tokens: private and support ones."""
    mixed_in = "public" if data.support is None else "support"
    for name in ("source", mixed_in):
        source = getattr(data, name)
        if isinstance(source, TextTable):
            yield f"data.{name}.length", source.length
