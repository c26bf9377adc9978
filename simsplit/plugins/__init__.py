"""Users add parts of their own in modules that `--plugin` or a Python call names."""

from simsplit.plugins.gathering import NO_PLUGINS, Given, Plugins, gather_again, gather_plugins
from simsplit.plugins.parts import EXPORTS, PARTS
from simsplit.plugins.plugin_modules import Origin

__all__ = [
    "EXPORTS",
    "NO_PLUGINS",
    "PARTS",
    "Given",
    "Origin",
    "Plugins",
    "gather_again",
    "gather_plugins",
]
