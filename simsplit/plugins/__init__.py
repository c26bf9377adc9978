"""Parts of the user's own: modules named by `--plugin` or in a Python call, and nowhere else."""

from simsplit.plugins.gathering import NO_PLUGINS, Given, Plugins, gathered, gathered_again
from simsplit.plugins.loading import Origin, Plugin
from simsplit.plugins.parts import EXPORTS, PARTS, Part

__all__ = [
    "EXPORTS",
    "NO_PLUGINS",
    "PARTS",
    "Given",
    "Origin",
    "Part",
    "Plugin",
    "Plugins",
    "gathered",
    "gathered_again",
]
