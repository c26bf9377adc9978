"""What happens at the cut, one file each, and the literal table of them."""

from simsplit.methods.admi import AdmiConfig
from simsplit.methods.base import CodecConfig, Method, MethodConfig, Share, Site, Step
from simsplit.methods.bottlenet import BottlenetConfig
from simsplit.methods.c3sl import C3slConfig
from simsplit.methods.cast import CastConfig
from simsplit.methods.cover import CoverConfig
from simsplit.methods.custext import CustextConfig
from simsplit.methods.distance_correlation import DistanceCorrelationConfig
from simsplit.methods.dp_forward import DpForwardConfig
from simsplit.methods.dp_sgd import DpSgdConfig
from simsplit.methods.dualguard import DualguardConfig
from simsplit.methods.learned1x1 import Learned1x1Config
from simsplit.methods.lightsplit import LightSplitConfig
from simsplit.methods.marvell import MarvellConfig
from simsplit.methods.max_norm import MaxNormConfig
from simsplit.methods.mid import MidConfig
from simsplit.methods.mixguard import MixguardConfig
from simsplit.methods.naive_mix import NaiveMixConfig
from simsplit.methods.noise import NoiseConfig
from simsplit.methods.nopeek import NopeekConfig
from simsplit.methods.p3eft import P3eftConfig
from simsplit.methods.private_backprop import PrivateBackpropConfig
from simsplit.methods.pslf import PslfConfig
from simsplit.methods.quantise import QuantiseConfig
from simsplit.methods.randomised_response import RandomisedResponseConfig
from simsplit.methods.raw import RawConfig
from simsplit.methods.santext import SantextConfig
from simsplit.methods.shredder import ShredderConfig
from simsplit.methods.snd import SndConfig
from simsplit.methods.sparsify import SparsifyConfig
from simsplit.methods.splitguard import SplitguardConfig
from simsplit.methods.text_obfuscator import TextObfuscatorConfig
from simsplit.methods.topk import RandTopkConfig, TopkConfig
from simsplit.methods.wcc import WccConfig
from simsplit.phases import Phase

METHODS: dict[str, type[MethodConfig]] = {
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
    "noise": NoiseConfig,
    "nopeek": NopeekConfig,
    "shredder": ShredderConfig,
    "splitguard": SplitguardConfig,
    "mixguard": MixguardConfig,
    "naive_mix": NaiveMixConfig,
    "cover": CoverConfig,
    "snd": SndConfig,
    "dp_forward": DpForwardConfig,
    "mid": MidConfig,
    "admi": AdmiConfig,
    "dualguard": DualguardConfig,
    "text_obfuscator": TextObfuscatorConfig,
    "santext": SantextConfig,
    "custext": CustextConfig,
    "dp_sgd": DpSgdConfig,
    "p3eft": P3eftConfig,
    "randomised_response": RandomisedResponseConfig,
    "distance_correlation": DistanceCorrelationConfig,
    "pslf": PslfConfig,
    "marvell": MarvellConfig,
    "max_norm": MaxNormConfig,
    "private_backprop": PrivateBackpropConfig,
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
