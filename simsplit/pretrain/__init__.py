"""This room pretrains small language models, without hub or network, from text on the disk."""

from simsplit.pretrain.cache import fetch_pretrained
from simsplit.pretrain.pretraining import has_pretraining, pretrain, read_facts
from simsplit.pretrain.tiers import TIERS, PretrainConfig

__all__ = [
    "TIERS",
    "PretrainConfig",
    "fetch_pretrained",
    "has_pretraining",
    "pretrain",
    "read_facts",
]
