"""Results are published in a repository of the Hugging Face hub, or in a folder."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simsplit.errors import RunError, SimsplitError
from simsplit.models.hub import hush_hub

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_folder(repository: str) -> bool:
    """Return whether a repository is a folder of this machine."""
    return repository.startswith((".", "/", "~"))


def refuse_unlike_repository(repository: str) -> None:
    """Raise SimsplitError for what is neither a repository of the hub nor a folder."""
    if not is_folder(repository) and not _REPOSITORY.fullmatch(repository):
        raise SimsplitError(
            f"got the repository '{repository}'; give OWNER/NAME on the hub, or a folder such as "
            "./published"
        )


@contextmanager
def on_hub(repository: str) -> "Iterator[HfApi]":
    """Open a context with the hub's client; whatever it raises becomes a RunError."""
    from huggingface_hub import HfApi

    try:
        with hush_hub():
            yield HfApi()
    except SimsplitError:
        raise
    except Exception as error:  # the hub's client raises from half a dozen packages
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RunError(
            f"{repository}: the hub answered: {first} (a token with access: hf auth login)"
        ) from error
