"""Tokenizers of language models: from texts to tokens, and back."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import ScenarioError
from simsplit.models.hub import hush_hub, lies_here

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BYTES = 3 + 256
"""Vocabulary of a model that reads bytes: padding, begin, end, and one token per byte."""
_PAD, _BEGIN, _END = range(3)


class Reader:
    """The tokenizer of one model, and all that the data's side needs to know of the model."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase | None",
        size: int,
        *,
        classifies: bool,
        both_ways: bool = False,
    ) -> None:
        """Read texts with a tokenizer, or byte by byte; `size` is the vocabulary's."""
        self._tokenizer = tokenizer
        self.size = size
        self.classifies = classifies
        """Whether the model predicts classes, not tokens."""
        self.both_ways = both_ways
        """Whether tokens attend in both directions, so that padding on any side needs a mask."""
        self.begin: int | None = _BEGIN
        self.end, self.pad = _END, _PAD
        self.close: int | None = _END if both_ways else None
        """The token that the model expects after every text, if any."""
        if tokenizer is not None:
            end = tokenizer.eos_token_id
            self.begin, self.end = tokenizer.bos_token_id, 0 if end is None else int(end)
            pad = tokenizer.pad_token_id
            self.pad = self.end if pad is None else int(pad)
        if tokenizer is not None and both_ways:
            self.begin, self.close = tokenizer.cls_token_id, tokenizer.sep_token_id

    @property
    def special(self) -> frozenset[int]:
        """The tokens that represent no text."""
        named = {self.begin, self.end, self.pad, self.close}
        if self._tokenizer is not None:
            named |= set(self._tokenizer.all_special_ids)
        return frozenset(token for token in named if token is not None)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's tokens, without special ones."""
        if self._tokenizer is None:
            return [[byte + _END + 1 for byte in text.encode()] for text in texts]
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text that the tokens represent; special ones are left out."""
        special = self.special
        kept = [int(token) for token in tokens if int(token) not in special]
        if self._tokenizer is None:
            text = bytes(token - _END - 1 for token in kept if token < BYTES)
            return text.decode(errors="replace")
        return str(self._tokenizer.decode(kept))


@lru_cache(maxsize=4)
def load_tokenizer(name: str, revision: str | None) -> "PreTrainedTokenizerBase":
    """Load a model's tokenizer from its folder or the hub."""
    from transformers import AutoTokenizer

    with refuse_unloadable(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, revision=revision, local_files_only=lies_here(name)
        )
    return tokenizer


@contextmanager
def refuse_unloadable(name: str) -> Iterator[None]:
    """Turn any error in loading a model into a ScenarioError that names alternatives."""
    try:
        with hush_hub():
            yield
    except Exception as error:  # the hub's client raises from half a dozen packages
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ScenarioError(
            "model.name",
            f"'{name}' cannot be loaded ({lines[0]}); use a model on the hub, a folder with one "
            f"(without a network, {Path.cwd() / name} is where its files may lie), or one that "
            "needs no network: simsplit/demo for texts, model.sizes for images",
        ) from error
