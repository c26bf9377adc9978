"""Recovered texts are scored beside two floors: random tokens, and the most frequent token.

Each message that a text was sent in gives a guess. An attack's figures are those of the guess that
it is surest of, or the mean over its guesses if it has no sureness. The mean over all guesses
(`mean_`) and the best guess (`best_`), which no attacker could pick, are reported too.

A server sees a batch, not an order. Where a method sends mixtures of a batch's own texts, what is
read in one text's place may be another text. So ROUGE-L is also scored by batch (`batch_`): each
reading counts for one text of the batch, by the assignment with the largest sum. This holds for the
floors too.

Special and secret tokens are left out before texts are compared, and an attacker need not find out
where a text ends. Attacks on gradients recover labels: a label is the next of the text's own
tokens. So a text is built from the labels at its own tokens, and secret tokens between them are
skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from simsplit.attacking.attack_judge import KindScores
from simsplit.attacking.input_scorer import InputScorer
from simsplit.attacks.attack import Guesses
from simsplit.data import Prepared
from simsplit.data.samples import Vocabulary
from simsplit.metrics.text import assign_readings, rouge_l, score_texts, split_words, token_rouge_l
from simsplit.results.leak_table import Row
from simsplit.results.recovered_files import TEXTS, encode_lines
from simsplit.scenario import Scenario
from simsplit.seeds import rng_for

FIGURES = ("rouge_l", "token_rouge_l", "meteor", "token_accuracy")
BY_BATCH = "batch_rouge_l"
RANDOM, FREQUENT = "random_tokens", "frequent_token"


class _Candidates(NamedTuple):
    """The guesses at one text, and the index of the one that the attack is surest of."""

    rows: list[Tensor]
    """What was read at all positions of each message."""
    places: Tensor
    """The positions of the text's own tokens."""
    pick: int | None = None


def take_places(row: Tensor, places: Tensor) -> Tensor:
    """Return what was read at some positions; a row may end before them."""
    return row[places[places < len(row)]]


def find_special(tokens: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return a mask of the tokens that stand for no text."""
    return torch.isin(tokens, torch.tensor(sorted(vocabulary.special)))


class TextScorer(InputScorer):
    """The scorer of texts, by ROUGE-L of words and of tokens, METEOR and token accuracy."""

    kind = "texts"

    def __init__(self, scenario: Scenario, data: Prepared) -> None:
        super().__init__(scenario, data)
        assert data.vocabulary is not None, "data of texts have a vocabulary"
        self.seed = scenario.seed
        self.size = scenario.targets.choose_batch_size(scenario.train.batch_size)
        self.vocabulary = data.vocabulary
        self.reader = scenario.text_reader()

    def score(
        self, number: int, recovered: Mapping[str, Guesses], own: Sequence[Tensor | None]
    ) -> KindScores:
        samples, rows = self.targets.choose(self.data)
        assert samples.texts is not None, "samples of texts have text information"
        chosen = samples.take(rows)
        assert chosen.texts is not None
        whole = [
            ids[-int(length) :] if chosen.texts.left else ids[: int(length)]
            for ids, length in zip(chosen.inputs, chosen.texts.lengths, strict=True)
        ]
        truth = [tokens[~find_special(tokens, self.vocabulary)] for tokens in whole]
        candidates = {
            name: self._collect_candidates(guesses, whole, own, left=chosen.texts.left)
            for name, guesses in recovered.items()
        }
        floors = make_text_floors(self.data, list(map(len, truth)), rng_for(self.seed, "floor"))
        for name, floor in zip((RANDOM, FREQUENT), floors, strict=True):
            candidates[name] = [_Candidates([each], torch.arange(len(each))) for each in floor]
        scores, texts = KindScores(), []
        for name, every in candidates.items():
            figures, shown = zip(*self._compare(every, truth), strict=True)
            pairs = zip(chosen.texts.groups.tolist(), figures, strict=True)
            scores.rows += self.list_rows(number, name, pairs, floor=name not in recovered)
            texts += [{"attack": name, "text": text, **each} for text, each in enumerate(shown)]
        scores.files[TEXTS] = encode_lines(texts)
        return scores

    def _collect_candidates(
        self,
        guesses: Guesses,
        whole: Sequence[Tensor],
        own: Sequence[Tensor | None],
        *,
        left: bool,
    ) -> list[_Candidates]:
        """Return the guesses of all messages for each text, at the positions of its own tokens."""
        rows_RL, sure_R = guesses.rows, guesses.sureness
        if guesses.ahead:  # a guess at one position is of the next token; the first has no guess
            rows_RL = torch.nn.functional.pad(rows_RL, (1, 0), value=self.vocabulary.pad)
        count = len(whole)
        messages = len(rows_RL) // count
        assert messages * count == len(rows_RL), "every message has a row of every text"
        candidates: list[_Candidates] = []
        for batch, part in enumerate(torch.arange(count).split(self.size)):
            kept = slice(messages * int(part[0]), messages * (int(part[-1]) + 1))
            mine, longest = own[batch], max(len(whole[text]) for text in part.tolist())
            for place, text in enumerate(part.tolist()):
                length = len(whole[text])
                # the positions of its own tokens in its message, special ones included
                if mine is None:
                    places = torch.arange(length) + (longest - length if left else 0)
                else:
                    places = mine[place].cpu().nonzero().flatten()[:length]
                if guesses.ahead:
                    # The guess at a token is the label at the text's own token before it; secret
                    # ones may lie between.
                    places = torch.cat([places.new_zeros(1), places[:-1] + 1])
                places = places[~find_special(whole[text], self.vocabulary)]
                rows = [*rows_RL[kept][place :: len(part)]]
                sure = None if sure_R is None else sure_R[kept][place :: len(part)]
                pick = None if sure is None else int(sure.argmax())
                candidates.append(_Candidates(rows, places, pick))
        return candidates

    def _compare(
        self, every: Sequence[_Candidates], truth: Sequence[Tensor]
    ) -> Iterator[tuple[Row, Row]]:
        """Yield the figures of each text, and the guess that is shown beside the private text."""
        by_batch = self._score_by_batch(every, truth)
        for text, (one, tokens) in enumerate(zip(every, truth, strict=True)):
            candidates, pick = [take_places(row, one.places) for row in one.rows], one.pick
            private = self.reader.decode(tokens.tolist())
            made = [self.reader.decode(guess.tolist()) for guess in candidates]
            each = score_texts(made, [private] * len(made))
            for figures, guess in zip(each, candidates, strict=True):
                figures["token_rouge_l"] = token_rouge_l(guess.tolist(), tokens.tolist())
                right = (guess[: len(tokens)] == tokens[: len(guess)]).sum()
                figures["token_accuracy"] = float(right) / max(1, len(tokens))
            row: Row = {}
            for figure in FIGURES:
                values = [figures[figure] for figures in each]
                mean = sum(values) / len(values)
                # Without a confidence the attack cannot choose: only the judge knows the best.
                row[figure] = mean if pick is None else values[pick]
                row |= {f"mean_{figure}": mean, f"best_{figure}": max(values)}
            row[BY_BATCH] = by_batch[text]
            nearest = max(range(len(made)), key=lambda index: each[index]["rouge_l"])
            shown = nearest if pick is None else pick
            near = {"message": shown, "rouge_l": round(each[shown]["rouge_l"], 4)}
            yield row, {**near, "private": private, "recovered": made[shown]}

    def _score_by_batch(self, every: Sequence[_Candidates], truth: Sequence[Tensor]) -> list[float]:
        """Return ROUGE-L of each text with the reading of its batch that is assigned to it."""
        scores: list[float] = []
        for first in range(0, len(truth), self.size):
            batch = every[first : first + self.size]
            texts = [self.reader.decode(each.tolist()) for each in truth[first : first + self.size]]
            # a reading is cut where the text ends that it is held against, as in its own place
            read = [[self._decode_at(place, one.places) for place in batch] for one in batch]
            near = [
                [_measure_nearness(guesses, text) for guesses in of_text]
                for of_text, text in zip(read, texts, strict=True)
            ]
            for text, place in enumerate(assign_readings(near)):
                each = [rouge_l(guess, texts[text]) for guess in read[text][place]]
                scores.append(sum(each) / len(each))
        return scores

    def _decode_at(self, one: _Candidates, places: Tensor) -> list[str]:
        """Decode what was read at some positions, where anything was: not behind a text's end."""
        # The attack's own choice counts, or all rows without one.
        counted = one.rows if one.pick is None else [one.rows[one.pick]]
        rows = (take_places(row, places) for row in counted)
        return [self.reader.decode(row[row >= 0].tolist()) for row in rows]


def make_text_floors(
    data: Prepared, lengths: Sequence[int], rng: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Return random tokens, and the most frequent token, as guesses at texts of these lengths."""
    assert data.vocabulary is not None, "data of texts have a vocabulary"
    drawn = [torch.randint(data.vocabulary.size, (n,), generator=rng) for n in lengths]
    # Without public data the clients' own texts set the floor, which no attacker could know.
    known = (data.auxiliary or data.train).inputs.flatten()
    often = int(known[~find_special(known, data.vocabulary)].bincount(minlength=1).argmax())
    return drawn, [torch.full((n,), often) for n in lengths]


def _measure_nearness(guesses: Sequence[str], text: str) -> float:
    """Return the mean ROUGE-L of guesses by words: the package's figure, many times faster."""
    words = split_words(text)
    return sum(token_rouge_l(split_words(guess), words) for guess in guesses) / len(guesses)
