"""What happens at the cut, one file each, and the literal table of them."""

from simsplit.methods.base import (
    CodecConfig,
    Method,
    MethodConfig,
    Phase,
    Share,
    Site,
    Step,
)
from simsplit.methods.cast import CastConfig
from simsplit.methods.learned1x1 import Learned1x1Config
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.raw import RawConfig
from simsplit.methods.wcc import WccConfig

METHODS: dict[str, type[MethodConfig]] = {
    "raw": RawConfig,
    "lightsplit": LightSplitConfig,
    "wcc": WccConfig,
    "learned1x1": Learned1x1Config,
    "cast": CastConfig,
}

__all__ = [
    "METHODS",
    "CodecConfig",
    "Method",
    "MethodConfig",
    "Phase",
    "Share",
    "Site",
    "Step",
]
