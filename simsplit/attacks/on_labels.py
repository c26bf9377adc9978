"""The table of attacks that recover labels."""

from simsplit.attacks.attack import AttackConfig
from simsplit.attacks.direct_labels import DirectLabelsConfig
from simsplit.attacks.exploit import ExploitConfig
from simsplit.attacks.few_labels import DirectionScoringConfig, ModelCompletionConfig
from simsplit.attacks.head_completion import ActiveCompletionConfig, PassiveCompletionConfig
from simsplit.attacks.kmeans import KmeansConfig
from simsplit.attacks.optimizer_inversion import OptimizerInversionConfig
from simsplit.attacks.probe import ProbeConfig
from simsplit.attacks.singular_direction import SingularDirectionConfig
from simsplit.attacks.spectral import NormConfig, SpectralConfig

ON_LABELS: dict[str, type[AttackConfig]] = {
    "spectral": SpectralConfig,
    "norm": NormConfig,
    "kmeans": KmeansConfig,
    "probe": ProbeConfig,
    "direction_scoring": DirectionScoringConfig,
    "model_completion": ModelCompletionConfig,
    "direct_labels": DirectLabelsConfig,
    "passive_completion": PassiveCompletionConfig,
    "active_completion": ActiveCompletionConfig,
    "exploit": ExploitConfig,
    "singular_direction": SingularDirectionConfig,
    "optimizer_inversion": OptimizerInversionConfig,
}
