"""The hub is asked once whether it answers, so that nobody waits for its client's retries.

Without an answer models are looked for where they were fetched before. The client would try six
times, for half a minute, and print two lines for each.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

ANSWER_S = 5.0
"""Seconds within which the hub answers."""
_CLIENT = "huggingface_hub.utils._http"
"""The logger of the client's retries."""


def lies_here(name: str) -> bool:
    """Return whether a model is to be loaded from this machine: a folder, or the hub is away."""
    return Path(name).is_dir() or not answers()


@cache
def answers() -> bool:
    """Return whether the hub answers now, with whatever it may be."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWER_S)
    except Exception:  # noqa: BLE001 - proxies and certificates fail in a dozen ways
        return False
    return True


@contextmanager
def hush_hub() -> Iterator[None]:
    """Open a context in which the client's lines on retries are one line."""
    logger, lines = logging.getLogger(_CLIENT), count()

    def pass_first(record: logging.LogRecord) -> bool:
        """Let the first line pass, in other words."""
        record.msg, record.args = "the hub does not answer yet; waiting for it", ()
        return next(lines) == 0

    logger.addFilter(pass_first)
    try:
        yield
    finally:
        logger.removeFilter(pass_first)
