"""The folder in which the user's machine keeps what took long to make: models, printed answers."""

import os
from pathlib import Path

VARIABLE = "SIMSPLIT_CACHE"
"""The environment variable that names another folder for the cache."""


def get_cache_folder() -> Path:
    """Return the folder that `$SIMSPLIT_CACHE` names, or ~/.cache/simsplit."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "simsplit"
