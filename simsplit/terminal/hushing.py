"""Libraries that say on stderr what they are at: the hub's retries, progress of downloads."""

import logging
import os

_LIBRARIES = {
    "huggingface_hub": "HF_HUB_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "transformers": "TRANSFORMERS_VERBOSITY",
}
"""Their loggers, and where each reads its level when it is imported."""
_NO_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


def hush() -> None:
    """Let them say errors alone from now on, unless the user has set their levels."""
    for name, variable in _LIBRARIES.items():
        if variable not in os.environ:
            os.environ[variable] = "error"
            logging.getLogger(name).setLevel(logging.ERROR)
    for variable in _NO_BARS:
        os.environ.setdefault(variable, "1")
