"""The table of attacks that recover the texts of training."""

from simsplit.attacks.adaptive import AdaptiveOfflineConfig, AdaptiveOnlineConfig
from simsplit.attacks.attack import AttackConfig
from simsplit.attacks.bisr import BisrConfig
from simsplit.attacks.gradient_ratio import GradientRatioConfig
from simsplit.attacks.lamp import LampConfig
from simsplit.attacks.sip import SipConfig
from simsplit.attacks.span_search import SpanSearchConfig
from simsplit.attacks.tag import TagConfig
from simsplit.attacks.tag_linear import TagLinearConfig
from simsplit.attacks.vocabulary_matching import VocabularyMatchingConfig

ON_TEXTS: dict[str, type[AttackConfig]] = {
    "sip": SipConfig,
    "tag": TagConfig,
    "tag_linear": TagLinearConfig,
    "lamp": LampConfig,
    "bisr": BisrConfig,
    "adaptive_online": AdaptiveOnlineConfig,
    "adaptive_offline": AdaptiveOfflineConfig,
    "gradient_ratio": GradientRatioConfig,
    "span_search": SpanSearchConfig,
    "vocabulary_matching": VocabularyMatchingConfig,
}
