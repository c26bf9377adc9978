"""The table of attacks that recover sessions: prompts with the responses of clients' models."""

from simsplit.attacks.attack import AttackConfig
from simsplit.attacks.first_readings import DsiConfig, McConfig, SessionSipConfig
from simsplit.attacks.known_pairs import KnownPairsConfig
from simsplit.attacks.model_completion import McTrainedConfig
from simsplit.attacks.pmi import PidiConfig, PmiConfig
from simsplit.attacks.vmi import RmiConfig, VmiConfig
from simsplit.attacks.vocabulary_matching import SessionMatchingConfig

ON_SESSIONS: dict[str, type[AttackConfig]] = {
    "mc": McConfig,
    "mc_trained": McTrainedConfig,
    "session_sip": SessionSipConfig,
    "dsi": DsiConfig,
    "vmi": VmiConfig,
    "rmi": RmiConfig,
    "pmi": PmiConfig,
    "pidi": PidiConfig,
    "session_matching": SessionMatchingConfig,
    "known_pairs": KnownPairsConfig,
}
