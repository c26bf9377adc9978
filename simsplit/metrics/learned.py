"""This module computes the scores of texts that need a network: BERTScore and BLEURT.

BERTScore (Zhang et al., 2020) matches each token of one text with the token of the other whose
state is nearest by cosine, and takes the F1 of both directions, without rescaling and without word
weights. Special tokens can be matched but do not count, as in the published code. BLEURT (Sellam et
al., 2020) is the output of a regression network for the pair, reference first.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.errors import ScenarioError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LAYERS = {
    ("bert", 12): 9,
    ("bert", 24): 18,
    ("roberta", 12): 10,
    ("roberta", 24): 17,
    ("distilbert", 6): 5,
}
"""Layer whose states are compared, as published for these encoders; other encoders use the last."""
AT_ONCE = 32
"""Number of texts that a network reads at once."""


class BertScore:
    """BERTScore of texts against references, with the encoder in a folder."""

    def __init__(self, folder: Path, where: str) -> None:
        from transformers import AutoModel

        self.model, self.tokenizer = _load(AutoModel, folder, where)
        config = self.model.config
        count = config.num_hidden_layers
        self.layer = LAYERS.get((config.model_type, count), count)

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> list[float]:
        """Score each pair; a pair with an empty side scores 0."""
        return [
            score
            for start in range(0, len(texts), AT_ONCE)
            for score in self._score(
                texts[start : start + AT_ONCE], references[start : start + AT_ONCE]
            )
        ]

    def _score(self, texts: Sequence[str], references: Sequence[str]) -> list[float]:
        (one_BKD, real_BK, counts_BK), (other_BLD, real_BL, counts_BL) = (
            self._read_states(list(each)) for each in (texts, references)
        )
        alike_BKL = torch.einsum("bkd,bld->bkl", one_BKD, other_BLD)
        # padding has similarity 0, as in the published code
        alike_BKL = alike_BKL.masked_fill(~(real_BK[:, :, None] & real_BL[:, None]), 0)
        precision = _average(alike_BKL.amax(2), counts_BK)
        recall = _average(alike_BKL.amax(1), counts_BL)
        f1 = 2 * precision * recall / (precision + recall)
        there = counts_BK.any(1) & counts_BL.any(1)
        return f1.masked_fill(~there, 0).nan_to_num(0).tolist()

    def _read_states(self, texts: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens' normalised states, which tokens are real, and which of them count."""
        given = {"return_tensors": "pt", "return_special_tokens_mask": True}
        read: Any = self.tokenizer(texts, padding=True, truncation=True, **given)
        counts = read.pop("special_tokens_mask") == 0
        with torch.no_grad():
            states = self.model(**read, output_hidden_states=True).hidden_states[self.layer]
        real = read["attention_mask"].bool()
        return normalize(states.float(), dim=-1), real, counts & real


def _average(values_BK: Tensor, counts_BK: Tensor) -> Tensor:
    return (values_BK * counts_BK).sum(1) / counts_BK.sum(1)


class Bleurt:
    """BLEURT of texts against references, with the regression network in a folder."""

    def __init__(self, folder: Path, where: str) -> None:
        from transformers import AutoModelForSequenceClassification

        self.model, self.tokenizer = _load(AutoModelForSequenceClassification, folder, where)
        if (outputs := self.model.config.num_labels) != 1:
            raise ScenarioError(where, f"must have one output, got {outputs} in {folder}")

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> list[float]:
        """Score each text against its reference, a few pairs at a time."""
        scores: list[float] = []
        for start in range(0, len(texts), AT_ONCE):
            pairs = references[start : start + AT_ONCE], texts[start : start + AT_ONCE]
            read: Any = self.tokenizer(
                *map(list, pairs), return_tensors="pt", padding=True, truncation=True
            )
            with torch.no_grad():
                scores += self.model(**read).logits[:, 0].float().tolist()
        return scores


def _load(
    kind: Any,  # noqa: ANN401 - the library's classes are untyped
    folder: Path,
    where: str,
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from transformers import AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ScenarioError(where, f"must be a folder with a transformers model, got {folder}")
    try:
        made = (
            kind.from_pretrained(folder, local_files_only=True),
            AutoTokenizer.from_pretrained(folder, local_files_only=True),
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ScenarioError(where, f"{folder} cannot be loaded ({reason})") from error
    model, tokenizer = made
    return model.eval(), tokenizer
