"""What is read of both ends of generation, and what keeping it costs: as PIDI's paper counts.

AP is the BLEU of what is read against what is private, as a share; of both ends it is weighted. MP,
the utility, is METEOR of what the model writes against the reference. DCS holds the two against an
undefended run: 1 where nothing is read and nothing is lost.
"""

import math
import re
from collections import Counter

from simsplit.metrics.text import sentence_bleu

_ENTITY = re.compile(r"[A-Z][A-Za-z'-]*|\d+(?:[.,]\d+)*")


def attack_performance(recovered: str, truth: str) -> float:
    """AP: sentence BLEU as a share, 0 to 1. Empty text scores 0."""
    return sentence_bleu(recovered, truth) / 100


def of_both_ends(of_prompt: float, of_response: float, alpha: float = 0.5) -> float:
    """AP of prompt and response together, in which the prompt weighs alpha."""
    return alpha * of_prompt + (1 - alpha) * of_response


def entity_f1(recovered: str, truth: str) -> float | None:
    """F1 of capitalised words and numbers, each as often as it occurs; None where there are none.

    The definition is ours: it needs no model. A sentence's first word counts as an entity too.
    """
    found, wanted = (Counter(_ENTITY.findall(text)) for text in (recovered, truth))
    if not wanted:
        return None
    hits = (found & wanted).total()
    return 2 * hits / (found.total() + wanted.total())


def defence_score(ap: float, mp: float, undefended_mp: float, beta: float = 0.5) -> float:
    """DCS, in which utility weighs beta; the best is an AP of 0 and no utility lost.

    Utility above that of the undefended run gains nothing: the published table follows from that.

    >>> round(defence_score(0.007, 0.205, 0.187), 3)
    0.995
    """
    leaked, lost = max(ap, 0.0), max(undefended_mp - mp, 0.0)
    return 1 / (1 + math.sqrt((1 - beta) * leaked**2 + beta * lost**2))
