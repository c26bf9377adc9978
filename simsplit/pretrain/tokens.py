"""A tokenizer of one's own: byte-level BPE, so that any text whatever comes back as it was."""

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
_AT_ONCE = 1_000


def trained(documents: Sequence[str], vocabulary: int) -> "Tokenizer":
    """Byte-level BPE of at most so many tokens; nothing is put around what it encodes."""
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


def stream_of(tokenizer: "Tokenizer", documents: Sequence[str]) -> Tensor:
    """All documents end to end, each between its special tokens."""
    tokenizer.encode_special_tokens = True  # a text that mentions <s> is a text
    parts: list[np.ndarray] = []
    for first in range(0, len(documents), _AT_ONCE):
        for encoded in tokenizer.encode_batch(documents[first : first + _AT_ONCE]):
            parts.append(np.array([START, *encoded.ids, END], dtype=np.int32))
    tokenizer.encode_special_tokens = False
    return torch.from_numpy(np.concatenate(parts))


def as_transformers(tokenizer: "Tokenizer", context: int) -> "PreTrainedTokenizerFast":
    """The same for transformers, which saves and loads it."""
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
