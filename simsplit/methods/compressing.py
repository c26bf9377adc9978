"""This module lists the methods that compress messages, and first `raw`, which changes nothing."""

from typing import Literal

from simsplit.methods.c3sl import C3slConfig
from simsplit.methods.learned1x1 import BottlenetConfig, Learned1x1Config
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.method import ANYTHING, Method, MethodConfig, Site
from simsplit.methods.quantise import CastConfig, QuantiseConfig
from simsplit.methods.topk import RandTopkConfig, SparsifyConfig, TopkConfig
from simsplit.methods.wcc import WccConfig


class RawConfig(MethodConfig):
    """No change at the cut, equivalent to an empty list of methods."""

    kind: Literal["raw"] = "raw"
    modalities = ANYTHING
    works_in_sessions = True
    reencodes = True
    everywhere = True

    def build(self, site: Site) -> Method:
        return Method()


COMPRESSING: dict[str, type[MethodConfig]] = {
    "raw": RawConfig,
    "lightsplit": LightSplitConfig,
    "wcc": WccConfig,
    "learned1x1": Learned1x1Config,
    "cast": CastConfig,
    "bottlenet": BottlenetConfig,
    "topk": TopkConfig,
    "randtopk": RandTopkConfig,
    "sparsify": SparsifyConfig,
    "c3sl": C3slConfig,
    "quantise": QuantiseConfig,
}
