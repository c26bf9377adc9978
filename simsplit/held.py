"""Objects of a Python call that a scenario names by their digest, since YAML cannot hold them.

They live in this process. Sweeps' workers and hosts are sent them; a file that names one is of use
only to a call that passes the same again.
"""

from collections.abc import Mapping

_HELD: dict[str, object] = {}


def hold(things: Mapping[str, object]) -> None:
    """Keep objects by their digests for as long as this process lives."""
    _HELD.update(things)


def held(digest: str) -> object | None:
    """The object of a digest; None where nobody passed it in this process."""
    return _HELD.get(digest)
