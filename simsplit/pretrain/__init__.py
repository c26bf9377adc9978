"""Small language models, pretrained here: no hub, no network, no text but what is on the disk."""

from simsplit.pretrain.cache import pretrained
from simsplit.pretrain.tiers import TIERS, PretrainConfig
from simsplit.pretrain.training import facts_of, is_there, pretrain

__all__ = ["TIERS", "PretrainConfig", "facts_of", "is_there", "pretrain", "pretrained"]
