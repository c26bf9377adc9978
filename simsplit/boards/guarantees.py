"""What the noise of a board's defences guarantees: an epsilon, or the reason why there is none.

The words "DP-SGD" in a row promise more than relative clipping keeps, so a board says it of each
strength.
"""

from collections.abc import Iterator, Mapping

from simsplit.errors import format_list
from simsplit.privacy.accounting import Guarantee, list_guarantees
from simsplit.scenario import Scenario


def describe_guarantees(scenarios: Mapping[str, Scenario]) -> Iterator[str]:
    """Yield what the methods of strengths guarantee, the strengths with the same words together."""
    by_words: dict[str, list[str]] = {}
    for strength, scenario in scenarios.items():
        for each in list_guarantees(scenario):
            by_words.setdefault(_describe(each), []).append(strength)
    for words, strengths in by_words.items():
        yield f"{words} ({format_list(strengths, 6)})"


def _describe(guarantee: Guarantee) -> str:
    if guarantee.lacks:
        return f"no epsilon from {guarantee.method}: {guarantee.lacks}"
    if guarantee.epsilon is not None:
        return f"epsilon {guarantee.epsilon:g} of {guarantee.protects} from {guarantee.method}"
    learning = guarantee.learning
    if learning is not None and learning.config.epsilon is not None:
        return (
            f"epsilon {learning.config.epsilon:g} of {guarantee.protects} from {guarantee.method}, "
            "for which each client finds its noise"
        )
    return (
        f"noise of {guarantee.multiplier:g} sensitivities on each sending of {guarantee.protects} "
        f"from {guarantee.method}; simsplit plan says the epsilon of a run"
    )
