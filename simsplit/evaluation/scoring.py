"""A scorer turns a model's outputs for a split into figures; it works where the labels are."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from simsplit.data.samples import IGNORED, Choices, Samples
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.metrics.classification import ClassMetric, score
from simsplit.metrics.token_score import TokenMetric, TokenScore


class Scorer:
    """A collector of a model's outputs for one split after another, which scores them."""

    def __init__(
        self,
        splits: Mapping[str, Samples],
        metrics: Sequence[str],
        batch_size: int,
        *,
        choices: Choices | None = None,
        own: Mapping[str, ClassMetric] | None = None,
    ) -> None:
        """Take the splits and metrics.

        `choices` are the answers of a causal model that classifies; `own` are plugins' metrics.
        """
        self.splits, self.metrics, self.choices = splits, metrics, choices
        self.batch_size, self.own = batch_size, own
        self._restart()

    def add(self, split: str, outputs: Tensor) -> None:
        """Add the outputs for the next batch of a split."""
        if self.choices is None:
            self._outputs.append(outputs)
        else:
            self._add_tokens(self.splits[split], outputs.cpu(), self.choices)
        self._batches += 1

    def figures(self, split: str) -> dict[str, float]:
        """Return the metrics over all added outputs, and forget the outputs."""
        try:
            if self.choices is not None:
                read = [name for name in self.metrics if name not in GENERATION_METRICS]
                return self._tokens.compute_figures(cast("Sequence[TokenMetric]", read))
            labels = self.splits[split].labels
            outputs = torch.cat(self._outputs).cpu()
            return score(outputs, labels[labels != IGNORED], self.metrics, self.own)
        finally:
            self._restart()

    def _restart(self) -> None:
        self._batches = 0
        self._outputs: list[Tensor] = []
        self._tokens = TokenScore()

    def _add_tokens(self, samples: Samples, logits: Tensor, choices: Choices) -> None:
        start = self._batches * self.batch_size
        rows = slice(start, start + self.batch_size)
        labels = samples.labels[rows]
        learned = labels != IGNORED
        self._tokens.add(logits, labels[learned])
        if choices.tokens:
            at = learned & samples.mask_answers(choices.after)[rows]
            self._tokens.choose(logits[at[learned]], labels[at], choices.tokens)
