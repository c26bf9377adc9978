"""The table of attacks that recover images."""

from simsplit.attacks.attack import AttackConfig
from simsplit.attacks.fora import ForaConfig, ForaReferenceConfig
from simsplit.attacks.fsha import FshaConfig
from simsplit.attacks.handed_weights import HandedWeightsConfig
from simsplit.attacks.pcat import PcatConfig
from simsplit.attacks.ridge import RidgeConfig
from simsplit.attacks.rmle import RmleConfig
from simsplit.attacks.sdar import NaiveSdaConfig, SdarConfig
from simsplit.attacks.unsplit import UnsplitConfig
from simsplit.attacks.whitebox import WhiteboxConfig

ON_IMAGES: dict[str, type[AttackConfig]] = {
    "sdar": SdarConfig,
    "naive_sda": NaiveSdaConfig,
    "pcat": PcatConfig,
    "fora": ForaConfig,
    "fora_reference": ForaReferenceConfig,
    "fsha": FshaConfig,
    "unsplit": UnsplitConfig,
    "whitebox": WhiteboxConfig,
    "rmle": RmleConfig,
    "ridge": RidgeConfig,
    "handed_weights": HandedWeightsConfig,
}
