"""This module trains a tokenizer: byte-level BPE, which encodes and decodes any text exactly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PAD, START, END = range(3)
"""Ids of the special tokens."""
SPECIAL = ("<pad>", "<s>", "</s>")
"""The special tokens, in the order of their ids."""
_AT_ONCE = 1_000
"""Number of documents that are encoded at once."""


def train_tokenizer(documents: Sequence[str], vocabulary: int) -> "Tokenizer":
    """Train byte-level BPE of at most `vocabulary` tokens; encoding adds no special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_stream(tokenizer: "Tokenizer", documents: Sequence[str]) -> Tensor:
    """Encode all documents as one stream, each between its special tokens."""
    tokenizer.encode_special_tokens = True  # encode a document's own "<s>" as plain text
    parts: list[np.ndarray] = []
    for first in range(0, len(documents), _AT_ONCE):
        for encoded in tokenizer.encode_batch(documents[first : first + _AT_ONCE]):
            parts.append(np.array([START, *encoded.ids, END], dtype=np.int32))
    tokenizer.encode_special_tokens = False
    return torch.from_numpy(np.concatenate(parts))


def to_transformers(tokenizer: "Tokenizer", context: int) -> "PreTrainedTokenizerFast":
    """Convert a tokenizer to one of transformers, which can save and load it."""
    from transformers import PreTrainedTokenizerFast

    pad, start, end = SPECIAL
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=start,
        eos_token=end,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
