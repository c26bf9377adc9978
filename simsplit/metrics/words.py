"""How good predictions of words are, summed up batch by batch: all logits would not fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from simsplit.metrics.text import perplexity

WordMetric = Literal["loss", "perplexity", "accuracy", "answers"]


@dataclass
class WordScore:
    """Sums over the words that were to be learned, and over the answers that were to be chosen."""

    words: int = 0
    loss: float = 0.0
    hits: int = 0
    texts: int = 0
    right: int = 0

    def add(self, logits_NV: Tensor, words_N: Tensor) -> None:
        """Count the words of a batch."""
        self.words += len(words_N)
        self.loss += cross_entropy(logits_NV, words_N, reduction="sum").item()
        self.hits += int((logits_NV.argmax(-1) == words_N).sum())

    def choose(self, logits_BV: Tensor, answers_B: Tensor, choices: Sequence[int]) -> None:
        """Count the texts whose answer's first word is the likeliest of all answers' first ones."""
        allowed = torch.tensor(choices)
        chosen = allowed[logits_BV[:, allowed].argmax(-1)]
        self.texts += len(answers_B)
        self.right += int((chosen == answers_B).sum())

    def figures(self, metrics: Sequence[WordMetric]) -> dict[str, float]:
        """The metrics asked for."""
        return {name: WORD_METRICS[name](self) for name in metrics}


WORD_METRICS: dict[WordMetric, Callable[[WordScore], float]] = {
    "loss": lambda score: score.loss / max(1, score.words),
    "perplexity": lambda score: perplexity(score.loss / max(1, score.words)),
    "accuracy": lambda score: score.hits / max(1, score.words),
    "answers": lambda score: score.right / max(1, score.texts),
}
