"""This module lists the methods that hide clients' inputs."""

from simsplit.methods.admi import AdmiConfig
from simsplit.methods.cover import CoverConfig
from simsplit.methods.distance_correlation import NopeekConfig
from simsplit.methods.dp_forward import DpForwardConfig
from simsplit.methods.dp_sgd import DpSgdConfig
from simsplit.methods.dualguard import DualguardConfig
from simsplit.methods.gradients_scrutinizer import GradientsScrutinizerConfig
from simsplit.methods.method import MethodConfig
from simsplit.methods.mid import MidConfig
from simsplit.methods.mixguard import MixguardConfig
from simsplit.methods.naive_mix import NaiveMixConfig
from simsplit.methods.noise import NoiseConfig, ShredderConfig
from simsplit.methods.rantext import RantextConfig
from simsplit.methods.replacing import CustextConfig, SantextConfig
from simsplit.methods.snd import SndConfig
from simsplit.methods.splitguard import SplitguardConfig
from simsplit.methods.text_obfuscator import TextObfuscatorConfig

HIDING_INPUTS: dict[str, type[MethodConfig]] = {
    "noise": NoiseConfig,
    "nopeek": NopeekConfig,
    "shredder": ShredderConfig,
    "splitguard": SplitguardConfig,
    "gradients_scrutinizer": GradientsScrutinizerConfig,
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
    "rantext": RantextConfig,
    "dp_sgd": DpSgdConfig,
}
