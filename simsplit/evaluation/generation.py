"""Text generation by a split model, token by token, each pass through the cut and back.

Every token takes the whole text through head, trunk and tail again, with the run's methods. There
is no cache, because a method may mix and noise each pass differently.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED, Samples
from simsplit.metrics.text import bleu, code_bleu, exact_answers, meteor, rouge_l
from simsplit.models.tokens import Reader
from simsplit.packets import ClientId
from simsplit.parties.calls import ProbeTexts
from simsplit.schedules.exchange import Exchange

Score = Callable[[Sequence[str], Sequence[str]], float]

FIRST_STEP = 1_000_000
"""Step numbers of generation start here, so that no evaluated batch has the same draws."""


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
    """Generates texts from prompts, greedily: always the likeliest token."""

    def __init__(self, exchange: Exchange, reader: Reader, *, texts: int, tokens: int) -> None:
        self.exchange, self.reader = exchange, reader
        self.texts, self.tokens = texts, tokens

    def figures(
        self, client: ClientId, samples: Samples, round_number: int, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Those of the metrics that score generated texts, for the first texts of a split."""
        wanted = [name for name in metrics if name in GENERATION_METRICS]
        if not wanted:
            return {}
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, meant = self._prompts_and_answers(chosen)
        said = self.generate(client, prompts, round_number)
        return {name: GENERATION_METRICS[name](said, meant) for name in wanted}

    def generate(self, client: ClientId, prompts: Sequence[Tensor], round_number: int) -> list[str]:
        """A continuation of each prompt by a client's model, up to its end token or the limit."""
        count, rows = len(prompts), torch.arange(len(prompts))
        starts = torch.tensor([len(prompt) for prompt in prompts])
        lengths = starts.clone()
        text = torch.full((count, int(starts.max()) + self.tokens), self.reader.pad)
        for row, prompt in enumerate(prompts):
            text[row, : len(prompt)] = prompt
        ended = torch.zeros(count, dtype=torch.bool)
        for number in range(self.tokens):
            wide = int(lengths.max())
            asked = torch.full((count, wide), IGNORED)
            asked[rows, lengths - 1] = 0  # any label: here something is to come out
            batch = Batch(text[:, :wide].clone(), asked, rows)
            probe = ProbeTexts(batch, round_number, FIRST_STEP + number)
            logits = self.exchange.outputs(client, probe)
            tokens = logits.argmax(-1).cpu()
            ended |= tokens == self.reader.end
            if ended.all():
                break
            text[rows[~ended], lengths[~ended]] = tokens[~ended]
            lengths += (~ended).long()
        found = zip(text, starts.tolist(), lengths.tolist(), strict=True)
        return [self.reader.decode(row[start:end].tolist()).strip() for row, start, end in found]

    def _prompts_and_answers(self, samples: Samples) -> tuple[list[Tensor], list[str]]:
        """The samples' prompts, and the answers that should follow them."""
        assert samples.texts is not None, "asked of texts alone"
        info = samples.texts
        prompts, answers = [], []
        told = zip(samples.inputs, info.lengths.tolist(), info.prompts.tolist(), strict=True)
        for ids, length, shown in told:
            real = ids[-length:] if info.left else ids[:length]
            prompts.append(real[:shown])
            answers.append(self.reader.decode(real[shown:].tolist()).strip())
        return prompts, answers
