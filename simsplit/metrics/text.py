"""How near recovered text is to the true one, and how good answers are: thin calls, offline.

Scales are the packages': BLEU goes up to 100, other scores up to 1. No pairs at all score 0.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from types import SimpleNamespace

from simsplit.errors import SimsplitError, install_command

FIGURES = ("rouge_l", "meteor")
ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5
"""METEOR's: recall weighs nine times precision; half is lost where no two matches are in a row."""

Nearness = Callable[[str, str], float]

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = rf"(?:(?<![\w)])-)?\$?(?:{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"


def text_figures(recovered: Sequence[str], truth: Sequence[str]) -> list[dict[str, float]]:
    """ROUGE-L and METEOR of each pair."""
    near = dict(zip(FIGURES, (_rouge_l(), _meteor()), strict=True))
    pairs = zip(recovered, truth, strict=True)
    return [{name: figure(*pair) for name, figure in near.items()} for pair in pairs]


def rouge_l(recovered: str, truth: str) -> float:
    """F1 of the longest common subsequence of words, unstemmed.

    Words are runs of a-z and digits in any case: text in other letters scores 0, as empty text.
    """
    return _rouge_l()(recovered, truth)


def meteor(recovered: str, truth: str) -> float:
    """METEOR by exact and stem matches: WordNet's synonyms, which are a download, are left out.

    Words and runs of punctuation count alike, in any case. The penalty for being in pieces spares
    no one: n words that are the same score 1 - 1/(2n^3). Empty text scores 0.
    """
    return _meteor()(recovered, truth)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU (0 to 100), tokenised and smoothed as sacrebleu does unasked."""
    with _needed("BLEU", "sacrebleu"):
        from sacrebleu import corpus_bleu
    pairs = list(zip(hypotheses, references, strict=True))
    if not pairs:
        return 0.0
    said, meant = zip(*pairs, strict=True)
    return float(corpus_bleu(said, [meant]).score)


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """BLEU of one text (0 to 100), with the effective order of short ones. Empty text scores 0."""
    with _needed("BLEU", "sacrebleu"):
        from sacrebleu import sentence_bleu as scored
    return float(scored(hypothesis, [reference]).score)


def code_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """CodeBLEU of Python, a quarter each for words, weighted words, syntax and data flow (0 to 1).

    As in the package, data flow that is nowhere matched counts as matched: no code scores 0.25.
    """
    try:
        from codebleu import calc_codebleu
        from codebleu.utils import get_tree_sitter_language

        get_tree_sitter_language("python")
    except (ImportError, TypeError, ValueError):  # TypeError: a grammar that is too new for it
        message = "CodeBLEU needs the packages codebleu 0.7 and tree-sitter-python 0.21"
        raise SimsplitError(f"{message}: {install_command('code')}") from None
    pairs = list(zip(hypotheses, references, strict=True))
    if not pairs:
        return 0.0
    said, meant = (list(side) for side in zip(*pairs, strict=True))
    return float(calc_codebleu(meant, said, "python")["codebleu"])


def answer_of(text: str) -> str | None:
    """GSM8K's final answer in plain digits: the number after the first `####`, or the last number.

    A `####` that no number follows is a heading. 1,234, $1234 and 1234.0 are all 1234.
    """
    marked = re.search(rf"####[\s$]*({_NUMBER})", text)
    found = [marked[1]] if marked else re.findall(_NUMBER, text)
    return _plain(found[-1]) if found else None


def exact_answers(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of final answers that are the reference's; where either has none, it is not."""
    pairs = [
        (answer_of(said), answer_of(meant))
        for said, meant in zip(hypotheses, references, strict=True)
    ]
    return sum(said == meant is not None for said, meant in pairs) / max(len(pairs), 1)


def perplexity(mean_loss: float) -> float:
    """Of a mean cross-entropy in nats; infinite where it is past what a float holds."""
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf


def _rouge_l() -> Nearness:
    with _needed("ROUGE", "rouge-score"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rougeL"])
    return lambda recovered, truth: float(scorer.score(truth, recovered)["rougeL"].fmeasure)


def _meteor() -> Nearness:
    with _needed("METEOR", "nltk"):
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


def _plain(number: str) -> str:
    """The shortest way to write it."""
    value = Decimal(re.sub("[,$]", "", number))
    digits = f"{value:f}" if value else "0"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


@contextmanager
def _needed(figure: str, package: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        message = f"{figure} needs the package {package}: pip install {package}"
        raise SimsplitError(message) from None
