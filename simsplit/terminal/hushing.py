"""Some libraries print on stderr: the hub's retries, progress of downloads. They can be hushed."""

import logging
import os

_LIBRARIES = {
    "huggingface_hub": "HF_HUB_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "transformers": "TRANSFORMERS_VERBOSITY",
}
"""The libraries' loggers, and the variable from which each reads its level on import."""
_NO_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


def hush() -> None:
    """Have the libraries print errors only, unless the user has set their levels."""
    for name, variable in _LIBRARIES.items():
        if variable not in os.environ:
            os.environ[variable] = "error"
            logging.getLogger(name).setLevel(logging.ERROR)
    for variable in _NO_BARS:
        os.environ.setdefault(variable, "1")
