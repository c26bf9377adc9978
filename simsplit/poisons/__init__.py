"""This room defines what malicious clients do, and lists the kinds of poisons."""

from simsplit.poisons.backdoors import (
    BadNetsConfig,
    BlendedConfig,
    CleanLabelConfig,
    SemanticConfig,
)
from simsplit.poisons.hidden_triggers import SigConfig, WanetConfig
from simsplit.poisons.poison import Aim, Poison, PoisonConfig, Scene, poison_batch
from simsplit.poisons.tampering import LabelFlipConfig, ReplaceConfig, TamperConfig
from simsplit.poisons.villain import VillainConfig

POISONS: dict[str, type[PoisonConfig]] = {
    "badnets": BadNetsConfig,
    "blended": BlendedConfig,
    "semantic": SemanticConfig,
    "clean_label": CleanLabelConfig,
    "wanet": WanetConfig,
    "sig": SigConfig,
    "label_flip": LabelFlipConfig,
    "tamper": TamperConfig,
    "replace": ReplaceConfig,
    "villain": VillainConfig,
}

__all__ = ["POISONS", "Aim", "Poison", "PoisonConfig", "Scene", "poison_batch"]
