"""The table of attacks on who, what and where from: members, attributes, origins."""

from simsplit.attacks.attack import AttackConfig
from simsplit.attacks.attribute_probe import AttributeProbeConfig
from simsplit.attacks.canaries import CanariesConfig
from simsplit.attacks.gradient_norm import GradientNormConfig
from simsplit.attacks.lira import LiraConfig
from simsplit.attacks.loss_threshold import LossThresholdConfig
from simsplit.attacks.site_inference import SiteInferenceConfig

ON_MEMBERS: dict[str, type[AttackConfig]] = {
    "loss_threshold": LossThresholdConfig,
    "gradient_norm": GradientNormConfig,
    "lira": LiraConfig,
    "canaries": CanariesConfig,
    "attribute_probe": AttributeProbeConfig,
    "site_inference": SiteInferenceConfig,
}
