"""This room pretrains small language models, without hub or network, from text on the disk."""

from simsplit.pretrain.cache import pretrained
from simsplit.pretrain.tiers import TIERS, PretrainConfig
from simsplit.pretrain.training import facts_of, is_there, pretrain

__all__ = ["TIERS", "PretrainConfig", "facts_of", "is_there", "pretrain", "pretrained"]
