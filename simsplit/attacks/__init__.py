"""What the server can recover of private data: one attack a file, and the literal table of them."""

from simsplit.attacks.adaptive import AdaptiveOfflineConfig, AdaptiveOnlineConfig
from simsplit.attacks.base import Attack, AttackConfig
from simsplit.attacks.bisr import BisrConfig
from simsplit.attacks.first_readings import DsiConfig, McConfig, SessionSipConfig
from simsplit.attacks.fora import ForaConfig, ForaReferenceConfig
from simsplit.attacks.fsha import FshaConfig
from simsplit.attacks.gradient_ratio import GradientRatioConfig
from simsplit.attacks.kmeans import KmeansConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.lamp import LampConfig
from simsplit.attacks.norm import NormConfig
from simsplit.attacks.optimizer_inversion import OptimizerInversionConfig
from simsplit.attacks.pcat import PcatConfig
from simsplit.attacks.pmi import PidiConfig, PmiConfig
from simsplit.attacks.probe import ProbeConfig
from simsplit.attacks.ridge import RidgeConfig
from simsplit.attacks.sdar import NaiveSdaConfig, SdarConfig
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.span_search import SpanSearchConfig
from simsplit.attacks.spectral import SpectralConfig
from simsplit.attacks.tag import TagConfig
from simsplit.attacks.targets import TargetsConfig
from simsplit.attacks.unsplit import UnsplitConfig
from simsplit.attacks.vmi import RmiConfig, VmiConfig
from simsplit.attacks.whitebox import WhiteboxConfig

ATTACKS: dict[str, type[AttackConfig]] = {
    "sdar": SdarConfig,
    "naive_sda": NaiveSdaConfig,
    "pcat": PcatConfig,
    "fora": ForaConfig,
    "fora_reference": ForaReferenceConfig,
    "fsha": FshaConfig,
    "unsplit": UnsplitConfig,
    "whitebox": WhiteboxConfig,
    "ridge": RidgeConfig,
    "sip": SipConfig,
    "tag": TagConfig,
    "lamp": LampConfig,
    "bisr": BisrConfig,
    "adaptive_online": AdaptiveOnlineConfig,
    "adaptive_offline": AdaptiveOfflineConfig,
    "gradient_ratio": GradientRatioConfig,
    "span_search": SpanSearchConfig,
    "spectral": SpectralConfig,
    "norm": NormConfig,
    "kmeans": KmeansConfig,
    "probe": ProbeConfig,
    "optimizer_inversion": OptimizerInversionConfig,
    "mc": McConfig,
    "session_sip": SessionSipConfig,
    "dsi": DsiConfig,
    "vmi": VmiConfig,
    "rmi": RmiConfig,
    "pmi": PmiConfig,
    "pidi": PidiConfig,
}

__all__ = ["ATTACKS", "Attack", "AttackConfig", "Knowledge", "TargetsConfig"]
