"""This module scores recovered and generated texts, through thin calls into packages, offline.

Scales are the packages': BLEU goes up to 100, other scores up to 1. Without pairs a score is 0.

Attacks on prompts and responses, and a defence's cost, are scored as PIDI's paper does. AP (attack
performance) is the BLEU of the recovered against the private text, as a share; AP of both ends is a
weighted mean. MP (model performance) is METEOR of the written text against the reference. DCS (the
defence's score) compares both with an undefended run: it is 1 if nothing is recovered and no
utility is lost.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from types import SimpleNamespace

from simsplit.errors import SimsplitError, install_command

FIGURES = ("rouge_l", "meteor")
ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5
"""Parameters of METEOR: recall weighs nine times precision; a score is halved if no two matches are
adjacent."""

Nearness = Callable[[str, str], float]

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = rf"(?:(?<![\w)])-)?\$?(?:{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"
_WORD = re.compile(r"[a-z0-9]+")
LEAST_GAIN = 1e-9
"""The sum by which an assignment must be better than each text's own place: more than rounding."""
_ENTITY = re.compile(r"[A-Z][A-Za-z'-]*|\d+(?:[.,]\d+)*")


def score_texts(recovered: Sequence[str], truth: Sequence[str]) -> list[dict[str, float]]:
    """Compute ROUGE-L and METEOR of each pair."""
    near = dict(zip(FIGURES, (_build_rouge_l(), _build_meteor()), strict=True))
    pairs = zip(recovered, truth, strict=True)
    return [{name: figure(*pair) for name, figure in near.items()} for pair in pairs]


def rouge_l(recovered: str, truth: str) -> float:
    """Return ROUGE-L: F1 of the longest common subsequence of words, unstemmed.

    Words are runs of a-z and digits in any case: text in other letters scores 0, like empty text.
    """
    return _build_rouge_l()(recovered, truth)


def token_rouge_l(recovered: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Return ROUGE-L over tokens: F1 of their longest common subsequence.

    Published code decodes texts token by token before it scores them, so that a part of a word
    counts as a word does. Empty text scores 0.

    >>> token_rouge_l([5, 6, 7], [5, 9, 7, 8])
    0.5714285714285714
    """
    common = _measure_common_subsequence(recovered, truth)
    return 2 * common / (len(recovered) + len(truth)) if common else 0.0


def _measure_common_subsequence(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence (Hyyrö 2004, a bit for each place)."""
    places: dict[Hashable, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    every = row = (1 << len(one)) - 1
    for token in other:
        here = row & places.get(token, 0)
        row = (row + here) | (row - here)
    return len(one) - (row & every).bit_count()


def split_words(text: str) -> list[str]:
    """Split a text into the words that ROUGE-L counts."""
    return _WORD.findall(text.lower())


def assign_readings(near: Sequence[Sequence[float]]) -> list[int]:
    """Assign each text one reading, and each reading to one text, with the largest sum.

    `near[text][reading]` is how near they are; there are as many of both. Where no other assignment
    is better, each text keeps the reading in its own place.

    >>> assign_readings([[0.1, 0.9], [0.8, 0.3]])
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    best = [int(reading) for reading in linear_sum_assignment(near, maximize=True)[1]]
    own = range(len(near))
    gained = sum(near[text][best[text]] - near[text][text] for text in own)
    return best if gained > LEAST_GAIN else [*own]


def meteor(recovered: str, truth: str) -> float:
    """Return METEOR by exact and stem matches; WordNet's synonyms, a download, are left out.

    Published code has the synonyms, so its figures are a little higher than these.

    Words and runs of punctuation count equally, in any case. The fragmentation penalty applies to
    equal texts too: n equal words score 1 - 1/(2n^3). Empty text scores 0.
    """
    return _build_meteor()(recovered, truth)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return corpus BLEU (0 to 100), with sacrebleu's default tokenisation and smoothing."""
    with _require("BLEU", "sacrebleu"):
        from sacrebleu import corpus_bleu
    pairs = list(zip(hypotheses, references, strict=True))
    if not pairs:
        return 0.0
    written, expected = zip(*pairs, strict=True)
    return float(corpus_bleu(written, [expected]).score)


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """Return BLEU of one text (0 to 100), with the effective order of short texts; 0 if empty."""
    with _require("BLEU", "sacrebleu"):
        from sacrebleu import sentence_bleu as score_sentence
    return float(score_sentence(hypothesis, [reference]).score)


def describe_lack_of_code_bleu() -> str:
    """Return how to install what CodeBLEU lacks here; empty if nothing is missing."""
    try:
        import codebleu  # noqa: F401 - whether it is there
        from codebleu.utils import get_tree_sitter_language

        get_tree_sitter_language("python")
    except (ImportError, TypeError, ValueError):  # TypeError: the grammar is too new for codebleu
        message = "CodeBLEU needs the packages codebleu 0.7 and tree-sitter-python 0.21"
        return f"{message}: {install_command('code')}"
    return ""


def code_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return CodeBLEU of Python (0 to 1): the mean of words, weighted words, syntax and data flow.

    As in the package, code without data flow gets its full quarter: empty code scores 0.25.
    """
    if lack := describe_lack_of_code_bleu():
        raise SimsplitError(lack)
    from codebleu import calc_codebleu

    pairs = list(zip(hypotheses, references, strict=True))
    if not pairs:
        return 0.0
    written, expected = (list(side) for side in zip(*pairs, strict=True))
    return float(calc_codebleu(expected, written, "python")["codebleu"])


def find_answer(text: str) -> str | None:
    """Return GSM8K's final answer in plain digits: the number after the first `####`, or the last.

    A `####` without a number after it is a heading. 1,234, $1234 and 1234.0 are all 1234.
    """
    marked = re.search(rf"####[\s$]*({_NUMBER})", text)
    numbers = [marked[1]] if marked else re.findall(_NUMBER, text)
    return _normalise_number(numbers[-1]) if numbers else None


def exact_answers(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of final answers that equal the reference's; a missing one never does."""
    pairs = [
        (find_answer(written), find_answer(expected))
        for written, expected in zip(hypotheses, references, strict=True)
    ]
    hits = sum(written == expected is not None for written, expected in pairs)
    return hits / max(len(pairs), 1)


def perplexity(mean_loss: float) -> float:
    """Return the perplexity of a mean cross-entropy in nats; infinite if it overflows a float."""
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf


def _build_rouge_l() -> Nearness:
    with _require("ROUGE", "rouge-score"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rougeL"])
    return lambda recovered, truth: float(scorer.score(truth, recovered)["rougeL"].fmeasure)


def _build_meteor() -> Nearness:
    with _require("METEOR", "nltk"):
        from nltk.stem.porter import PorterStemmer
        from nltk.tokenize import wordpunct_tokenize
        from nltk.translate.meteor_score import single_meteor_score
    stemmer = SimpleNamespace(stem=lru_cache(2**16)(PorterStemmer().stem))
    no_synonyms = SimpleNamespace(synsets=lambda word: [])

    def nearness(recovered: str, truth: str) -> float:
        score = single_meteor_score(
            wordpunct_tokenize(truth),
            wordpunct_tokenize(recovered),
            stemmer=stemmer,
            wordnet=no_synonyms,
            alpha=ALPHA,
            beta=BETA,
            gamma=GAMMA,
        )
        return float(score)

    return nearness


def _normalise_number(number: str) -> str:
    """Return the shortest way to write a number."""
    value = Decimal(re.sub("[,$]", "", number))
    digits = f"{value:f}" if value else "0"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


@contextmanager
def _require(figure: str, package: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        message = f"{figure} needs the package {package}: pip install {package}"
        raise SimsplitError(message) from None


def compute_attack_performance(recovered: str, truth: str) -> float:
    """Return AP: sentence BLEU as a share, 0 to 1. Empty text scores 0."""
    return sentence_bleu(recovered, truth) / 100


def combine_ends(of_prompt: float, of_response: float, alpha: float = 0.5) -> float:
    """Return the AP of prompt and response together, in which the prompt has the weight alpha."""
    return alpha * of_prompt + (1 - alpha) * of_response


def entity_f1(recovered: str, truth: str) -> float | None:
    """Return the F1 of capitalised words and numbers, with repetitions; None if the truth has none.

    The definition is ours: it needs no model. A sentence's first word counts as an entity too.
    """
    got, wanted = (Counter(_ENTITY.findall(text)) for text in (recovered, truth))
    if not wanted:
        return None
    hits = (got & wanted).total()
    return 2 * hits / (got.total() + wanted.total())


def compute_defence_score(ap: float, mp: float, undefended_mp: float, beta: float = 0.5) -> float:
    """Return DCS, in which utility has the weight beta; it is 1 for an AP of 0 and no lost utility.

    Utility above the undefended run's does not raise it: only so the published table is matched.

    >>> round(compute_defence_score(0.007, 0.205, 0.187), 3)
    0.995
    """
    leaked, lost = max(ap, 0.0), max(undefended_mp - mp, 0.0)
    return 1 / (1 + math.sqrt((1 - beta) * leaked**2 + beta * lost**2))
