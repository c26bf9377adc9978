"""A split model generates texts after prompts, which are scored against the reference texts.

Scorers turn a model's outputs into figures; they work where the labels are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import cast

import torch
from torch import Tensor

from simsplit.data.samples import IGNORED, Choices, Samples
from simsplit.evaluation.writing import Writer
from simsplit.legs import ClientId
from simsplit.metrics.classification import ClassMetric, TokenMetric, TokenScore, score
from simsplit.metrics.text import bleu, code_bleu, exact_answers, meteor, rouge_l
from simsplit.models.tokenizers import Reader

Score = Callable[[Sequence[str], Sequence[str]], float]


def _average(compare: Callable[[str, str], float]) -> Score:
    """Return the metric that is the mean of `compare` over pairs of texts."""

    def score(texts: Sequence[str], references: Sequence[str]) -> float:
        pairs = zip(texts, references, strict=True)
        return sum(compare(*pair) for pair in pairs) / max(1, len(texts))

    return score


GENERATION_METRICS: dict[str, Score] = {
    "exact_answers": exact_answers,
    "rouge_l": _average(rouge_l),
    "meteor": _average(meteor),
    "bleu": bleu,
    "code_bleu": code_bleu,
}
"""Metrics that compare generated texts with reference texts, by name."""


class Generator:
    """A generator of texts from prompts, which scores them too."""

    def __init__(self, writer: Writer, reader: Reader, *, texts: int, tokens: int) -> None:
        self.writer, self.reader = writer, reader
        self.texts, self.tokens = texts, tokens

    def figures(
        self, client: ClientId, samples: Samples, round_number: int, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Generate the first texts of a split, and return their figures by metric."""
        wanted = [name for name in metrics if name in GENERATION_METRICS]
        if not wanted:
            return {}
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, references = split_prompts(self.reader, chosen)
        texts = self.generate(client, prompts, round_number)
        return {name: GENERATION_METRICS[name](texts, references) for name in wanted}

    def generate(self, client: ClientId, prompts: Sequence[Tensor], round_number: int) -> list[str]:
        """Return a continuation of each prompt by a client's model, up to its end or the limit."""
        texts = self.writer.write(client, prompts, self.tokens, round_number)
        return [self.reader.decode(text).strip() for text in texts]


def split_prompts(
    reader: Reader, samples: Samples, *, halved: bool = False
) -> tuple[list[Tensor], list[str]]:
    """Return the samples' prompts, and the reference answers to them.

    `halved`: the first half of a text without a prompt serves as its prompt.
    """
    assert samples.texts is not None, "only texts have prompts"
    info = samples.texts
    prompts, answers = [], []
    begin = 0 if reader.begin is None else 1
    texts = zip(samples.inputs, info.lengths.tolist(), info.prompts.tolist(), strict=True)
    for ids, length, shown in texts:
        real = ids[-length:] if info.left else ids[:length]
        if halved and shown <= begin:
            shown = max(1, (length + begin) // 2)
        prompts.append(real[:shown])
        answers.append(reader.decode(real[shown:].tolist()).strip())
    return prompts, answers


@dataclass(eq=False)
class Scorer:
    """A collector of a model's outputs for one split after another, which scores them."""

    splits: Mapping[str, Samples]
    metrics: Sequence[str]
    batch_size: int
    _: KW_ONLY
    choices: Choices | None = None
    """The answers of a causal model that classifies."""
    own: Mapping[str, ClassMetric] | None = None
    """Plugins' metrics."""

    def __post_init__(self) -> None:
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
