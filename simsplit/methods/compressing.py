"""This module lists the methods that compress messages, and first `raw`, which changes nothing."""

from simsplit.methods.bottlenet import BottlenetConfig
from simsplit.methods.c3sl import C3slConfig
from simsplit.methods.cast import CastConfig
from simsplit.methods.learned1x1 import Learned1x1Config
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.method import MethodConfig
from simsplit.methods.quantise import QuantiseConfig
from simsplit.methods.raw import RawConfig
from simsplit.methods.sparsify import SparsifyConfig
from simsplit.methods.topk import RandTopkConfig, TopkConfig
from simsplit.methods.wcc import WccConfig

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
