"""This module keeps objects passed from Python, which a scenario names by digest.

YAML cannot hold such objects (data, modules). They live in this process and are sent to a sweep's
workers and to hosts. A scenario file that names one can only be run by a call that passes the same
object again.
"""

from collections.abc import Mapping

_HELD: dict[str, object] = {}


def hold(things: Mapping[str, object]) -> None:
    """Keep objects by their digests for as long as this process lives."""
    _HELD.update(things)


def get_held(digest: str) -> object | None:
    """Return the object with this digest; None if it was not passed to this process."""
    return _HELD.get(digest)
