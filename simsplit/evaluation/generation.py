"""Scores of texts that a split model writes: what it says after prompts, against what was meant."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from simsplit.data.samples import Samples
from simsplit.evaluation.writing import Writer
from simsplit.metrics.text import bleu, code_bleu, exact_answers, meteor, rouge_l
from simsplit.models.tokens import Reader
from simsplit.packets import ClientId

Score = Callable[[Sequence[str], Sequence[str]], float]


def _mean(near: Callable[[str, str], float]) -> Score:
    def score(said: Sequence[str], meant: Sequence[str]) -> float:
        pairs = zip(said, meant, strict=True)
        return sum(near(*pair) for pair in pairs) / max(1, len(said))

    return score


GENERATION_METRICS: dict[str, Score] = {
    "exact_answers": exact_answers,
    "rouge_l": _mean(rouge_l),
    "meteor": _mean(meteor),
    "bleu": bleu,
    "code_bleu": code_bleu,
}
"""Each compares generated texts with reference texts."""


class Generator:
    """Generates texts from prompts, and scores them."""

    def __init__(self, writer: Writer, reader: Reader, *, texts: int, tokens: int) -> None:
        self.writer, self.reader = writer, reader
        self.texts, self.tokens = texts, tokens

    def figures(
        self, client: ClientId, samples: Samples, round_number: int, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Those of the metrics that score generated texts, for the first texts of a split."""
        wanted = [name for name in metrics if name in GENERATION_METRICS]
        if not wanted:
            return {}
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, meant = self.prompts_and_answers(chosen)
        said = self.generate(client, prompts, round_number)
        return {name: GENERATION_METRICS[name](said, meant) for name in wanted}

    def generate(self, client: ClientId, prompts: Sequence[Tensor], round_number: int) -> list[str]:
        """A continuation of each prompt by a client's model, up to its end token or the limit."""
        said = self.writer.write(client, prompts, self.tokens, round_number)
        return [self.reader.decode(text).strip() for text in said]

    def prompts_and_answers(
        self, samples: Samples, *, halved: bool = False
    ) -> tuple[list[Tensor], list[str]]:
        """The samples' prompts, and the answers that should follow them."""
        return prompts_and_answers(self.reader, samples, halved=halved)


def prompts_and_answers(
    reader: Reader, samples: Samples, *, halved: bool = False
) -> tuple[list[Tensor], list[str]]:
    """The samples' prompts, and the answers that should follow them.

    `halved`: of texts without a prompt the first half is taken for one.
    """
    assert samples.texts is not None, "asked of texts alone"
    info = samples.texts
    prompts, answers = [], []
    begin = 0 if reader.begin is None else 1
    told = zip(samples.inputs, info.lengths.tolist(), info.prompts.tolist(), strict=True)
    for ids, length, shown in told:
        real = ids[-length:] if info.left else ids[:length]
        if halved and shown <= begin:
            shown = max(1, (length + begin) // 2)
        prompts.append(real[:shown])
        answers.append(reader.decode(real[shown:].tolist()).strip())
    return prompts, answers
