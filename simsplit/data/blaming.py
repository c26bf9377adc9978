"""This module names the right source in an error: each source reports itself as `data.source`."""

from collections.abc import Iterator
from contextlib import contextmanager

from simsplit.errors import DataError


@contextmanager
def blame(field: str) -> Iterator[None]:
    """Rename `data.source` to `data.<field>` in a DataError that the block raises."""
    try:
        yield
    except DataError as error:
        message = str(error)
        if not message.startswith("data.source"):
            raise
        rest = message.removeprefix("data.source")
        raise DataError(f"scenario.data.{field}{rest}") from error.__cause__
