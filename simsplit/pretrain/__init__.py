"""This room pretrains small language models, without hub or network, from text on the disk."""

from functools import partial
from typing import TYPE_CHECKING

from simsplit.pretrain.cache import fetch_pretrained
from simsplit.pretrain.pretraining import has_pretraining, pretrain, read_facts
from simsplit.pretrain.tiers import TIERS, PretrainConfig
from simsplit.renamed import find_by_old_name

__all__ = [
    "TIERS",
    "PretrainConfig",
    "fetch_pretrained",
    "has_pretraining",
    "pretrain",
    "read_facts",
]

if not TYPE_CHECKING:  # type checkers know the new names alone
    __getattr__ = partial(find_by_old_name, __name__)
