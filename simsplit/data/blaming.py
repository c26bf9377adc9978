"""Which of a scenario's sources is at fault: each of them thinks that it is `data.source`."""

from collections.abc import Iterator
from contextlib import contextmanager

from simsplit.errors import DataError


@contextmanager
def blamed(field: str) -> Iterator[None]:
    """A block that reads the source `data.<field>`; what is wrong with it carries that name."""
    try:
        yield
    except DataError as error:
        told = str(error)
        if not told.startswith("data.source"):
            raise
        rest = told.removeprefix("data.source")
        raise DataError(f"scenario.data.{field}{rest}") from error.__cause__
