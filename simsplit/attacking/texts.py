"""Scores recovered texts, and two baselines: random tokens, and the most frequent token.

Each message that a text was sent in gives a guess of its own. Tables have the mean over these
guesses and the best one, which an attacker could not pick. Special and secret tokens are left out
before texts are compared; an attacker is not asked where a text ends.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from simsplit.attacking.judging import Judge, Judgement
from simsplit.data import Prepared
from simsplit.metrics.text import text_figures
from simsplit.results.texts import save_texts
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for

FIGURES = ("rouge_l", "meteor", "token_accuracy")
BEST = tuple(f"best_{name}" for name in FIGURES)
COLUMNS = ("round", "attack", "text", "label", *FIGURES, *BEST)
RANDOM, FREQUENT = "random_tokens", "frequent_token"


class TextJudge(Judge):
    """Scores recovered texts by ROUGE-L, METEOR and token accuracy."""

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        assert data.vocabulary is not None, "of texts"
        self.targets, self.data, self.seed = scenario.targets, data, scenario.seed
        self.size = scenario.targets.at_once(scenario.train.batch_size)
        self.vocabulary = data.vocabulary
        self.reader = scenario.text_reader()

    @staticmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """The same columns for every scenario."""
        del scenario
        return COLUMNS

    def score(
        self, number: int, recovered: Mapping[str, Tensor], own: Sequence[Tensor | None]
    ) -> Judgement:
        """A row for each attack and text."""
        samples, rows = self.targets.chosen(self.data)
        assert samples.texts is not None, "of texts"
        chosen = samples.take(rows)
        assert chosen.texts is not None
        whole = [
            ids[-int(length) :] if chosen.texts.left else ids[: int(length)]
            for ids, length in zip(chosen.inputs, chosen.texts.lengths, strict=True)
        ]
        truth = [self._real(tokens) for tokens in whole]
        found = Judgement()
        for name, ids in recovered.items():
            guesses = self._guesses(ids, whole, own)
            self._judge(name, guesses, truth, found)
        for name, floor in self._floors(truth).items():
            self._judge(name, [[guess] for guess in floor], truth, found)
        for row in found.rows:
            label = int(chosen.texts.groups[int(str(row["text"]))])
            row |= {"round": number, "label": label}
        return found

    def save(self, path: Path, number: int, judged: Judgement) -> None:
        """Save private and recovered texts, a JSON line each."""
        save_texts(path, number, judged.texts)

    def _guesses(
        self, ids_RL: Tensor, whole: Sequence[Tensor], own: Sequence[Tensor | None]
    ) -> list[list[Tensor]]:
        """For each text, the guesses of all messages, at the positions of its own tokens."""
        count = len(whole)
        messages = len(ids_RL) // count
        assert messages * count == len(ids_RL), "every message is of every text"
        guesses: list[list[Tensor]] = []
        for batch, part in enumerate(torch.arange(count).split(self.size)):
            rows = ids_RL[messages * int(part[0]) :][: messages * len(part)]
            mine = own[batch]
            for place, text in enumerate(part.tolist()):
                kept = self._places(None if mine is None else mine[place], whole[text])
                candidates = rows[place :: len(part)]
                guesses.append([each[kept[kept < len(each)]] for each in candidates])
        return guesses

    def _places(self, own: Tensor | None, tokens: Tensor) -> Tensor:
        """Positions of a text's own tokens in what was sent, without special tokens."""
        every = torch.arange(len(tokens)) if own is None else own.cpu().nonzero().flatten()
        return every[: len(tokens)][~self._special(tokens)]

    def _judge(
        self,
        name: str,
        guesses: Sequence[Sequence[Tensor]],
        truth: Sequence[Tensor],
        found: Judgement,
    ) -> None:
        private = [self.reader.decode(tokens.tolist()) for tokens in truth]
        for text, candidates in enumerate(guesses):
            made = [self.reader.decode(tokens.tolist()) for tokens in candidates]
            each = text_figures(made, [private[text]] * len(made))
            for figures, guess in zip(each, candidates, strict=True):
                figures["token_accuracy"] = _token_accuracy(guess, truth[text])
            row: dict[str, object] = {"attack": name, "text": text}
            for figure in FIGURES:
                values = [figures[figure] for figures in each]
                row |= {figure: sum(values) / len(values), f"best_{figure}": max(values)}
            found.rows.append(row)
            best = max(range(len(made)), key=lambda index: each[index]["rouge_l"])
            place = {"attack": name, "text": text, "message": best}
            near = {"rouge_l": round(each[best]["rouge_l"], 4)}
            pair = {"private": private[text], "recovered": made[best]}
            found.texts.append({**place, **near, **pair})

    def _floors(self, truth: Sequence[Tensor]) -> dict[str, list[Tensor]]:
        rng = rng_for(self.seed, "floor")
        drawn = [torch.randint(self.vocabulary.size, (len(t),), generator=rng) for t in truth]
        known = self.data.auxiliary or self.data.train
        often = int(self._real(known.inputs.flatten()).bincount().argmax())
        return {RANDOM: drawn, FREQUENT: [torch.full_like(t, often) for t in truth]}

    def _real(self, tokens: Tensor) -> Tensor:
        return tokens[~self._special(tokens)]

    def _special(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens, torch.tensor(sorted(self.vocabulary.special)))


def _token_accuracy(tokens: Tensor, truth: Tensor) -> float:
    """The share of the true tokens that are recovered at their position."""
    short = min(len(tokens), len(truth))
    return float((tokens[:short] == truth[:short]).sum()) / max(1, len(truth))
