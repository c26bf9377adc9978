"""This module scores attacks on prompts and responses, and a defence's cost, as PIDI's paper does.

AP (attack performance) is the BLEU of the recovered against the private text, as a share; AP of
both ends is a weighted mean. MP (model performance) is METEOR of the written text against the
reference. DCS (the defence's score) compares both with an undefended run: it is 1 if nothing is
recovered and no utility is lost.
"""

import math
import re
from collections import Counter

from simsplit.metrics.text import sentence_bleu

_ENTITY = re.compile(r"[A-Z][A-Za-z'-]*|\d+(?:[.,]\d+)*")


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

    >>> round(defence_score(0.007, 0.205, 0.187), 3)
    0.995
    """
    leaked, lost = max(ap, 0.0), max(undefended_mp - mp, 0.0)
    return 1 / (1 + math.sqrt((1 - beta) * leaked**2 + beta * lost**2))
