"""What a split model writes: prompts gone on with word by word, each through the cut and back.

Every word takes the whole text through head, trunk and tail again, under whatever method the run
has; there is no cache, for a method may mix and noise each pass otherwise.
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
"""Steps of writing count from here, so that no evaluated batch has the same draws."""


def _mean(near: Callable[[str, str], float]) -> Score:
    def score(said: Sequence[str], meant: Sequence[str]) -> float:
        pairs = zip(said, meant, strict=True)
        return sum(near(*pair) for pair in pairs) / max(1, len(said))

    return score


WRITTEN_METRICS: dict[str, Score] = {
    "exact_answers": exact_answers,
    "rouge_l": _mean(rouge_l),
    "meteor": _mean(meteor),
    "bleu": bleu,
    "code_bleu": code_bleu,
}
"""Of texts against those that were to be written."""


class Writer:
    """Goes on with prompts, always with the likeliest word."""

    def __init__(self, exchange: Exchange, reader: Reader, *, texts: int, words: int) -> None:
        self.exchange, self.reader = exchange, reader
        self.texts, self.words = texts, words

    def figures(
        self, client: ClientId, samples: Samples, round_number: int, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Those of the metrics that are of what is written."""
        wanted = [name for name in metrics if name in WRITTEN_METRICS]
        if not wanted:
            return {}
        chosen = samples.take(torch.arange(min(self.texts, len(samples))))
        prompts, meant = self._apart(chosen)
        said = self.go_on(client, prompts, round_number)
        return {name: WRITTEN_METRICS[name](said, meant) for name in wanted}

    def go_on(self, client: ClientId, prompts: Sequence[Tensor], round_number: int) -> list[str]:
        """What a client's model writes behind each prompt, up to the end or so many words."""
        count, rows = len(prompts), torch.arange(len(prompts))
        starts = torch.tensor([len(prompt) for prompt in prompts])
        lengths = starts.clone()
        text = torch.full((count, int(starts.max()) + self.words), self.reader.pad)
        for row, prompt in enumerate(prompts):
            text[row, : len(prompt)] = prompt
        ended = torch.zeros(count, dtype=torch.bool)
        for number in range(self.words):
            wide = int(lengths.max())
            asked = torch.full((count, wide), IGNORED)
            asked[rows, lengths - 1] = 0  # any label: here something is to come out
            batch = Batch(text[:, :wide].clone(), asked, rows)
            probe = ProbeTexts(batch, round_number, FIRST_STEP + number)
            logits = self.exchange.outputs(client, probe)
            words = logits.argmax(-1).cpu()
            ended |= words == self.reader.end
            if ended.all():
                break
            text[rows[~ended], lengths[~ended]] = words[~ended]
            lengths += (~ended).long()
        written = zip(text, starts.tolist(), lengths.tolist(), strict=True)
        return [self.reader.decode(row[start:end].tolist()).strip() for row, start, end in written]

    def _apart(self, samples: Samples) -> tuple[list[Tensor], list[str]]:
        """Prompts, and what is to follow them."""
        assert samples.words is not None, "asked of texts alone"
        words = samples.words
        prompts, answers = [], []
        told = zip(samples.inputs, words.lengths.tolist(), words.prompts.tolist(), strict=True)
        for ids, length, shown in told:
            real = ids[-length:] if words.left else ids[:length]
            prompts.append(real[:shown])
            answers.append(self.reader.decode(real[shown:].tolist()).strip())
        return prompts, answers
