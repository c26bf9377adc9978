"""Attacks by which the server recovers private data, about one per file, and their table."""

from simsplit.attacks.attack import Attack, AttackConfig
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.on_images import ON_IMAGES
from simsplit.attacks.on_labels import ON_LABELS
from simsplit.attacks.on_members import ON_MEMBERS
from simsplit.attacks.on_sessions import ON_SESSIONS
from simsplit.attacks.on_texts import ON_TEXTS
from simsplit.attacks.targets import TargetsConfig
from simsplit.attacks.threat import Knows, Sees, Threat, When

ATTACKS: dict[str, type[AttackConfig]] = {
    **ON_IMAGES,
    **ON_TEXTS,
    **ON_LABELS,
    **ON_SESSIONS,
    **ON_MEMBERS,
}

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackConfig",
    "Knowledge",
    "Knows",
    "Sees",
    "TargetsConfig",
    "Threat",
    "When",
]
