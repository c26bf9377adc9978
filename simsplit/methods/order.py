"""Which methods go behind which: a list that would not work, or not as it reads, is refused.

On each leg a batch starts with all traits; every method of the list takes some for granted and ends
some. All other rules of composition follow from that.
"""

from collections.abc import Sequence

from simsplit.errors import ScenarioError
from simsplit.methods.base import MethodConfig, Trait
from simsplit.packets import Leg

_WHY = {
    Trait.SAMPLES: "behind {before} rows are no longer the batch's samples, which {method} needs",
    Trait.ALONE: "{before} keeps something of the batch's own texts, and {method} adds others",
    Trait.SHAPE: "{before} flattens what {method} needs in its shape",
    Trait.VALUES: "{before} has chosen which values cross, and {method} changes values",
    Trait.NUMBERS: "{before} packs numbers to bits, which {method} would take for values",
    Trait.FORMAT: "{before} is the number format already, and {method} is one too",
}


def refuse_disorder(methods: Sequence[MethodConfig]) -> None:
    """Raise ScenarioError if methods cannot be combined, or not in this order."""
    for leg in (Leg.SMASHED, Leg.FEATURES):
        chain = {index: each for index, each in enumerate(methods) if leg in each.acts_on}
        for index, method in chain.items():
            for place in range(index):
                if place in chain and (why := _misfit(chain[place], method)):
                    way = _way_out(methods, place, index)
                    raise ScenarioError(f"method.{index}.kind", f"{why}; {way}")


def _misfit(before: MethodConfig, method: MethodConfig) -> str | None:
    """Why a method cannot follow another on a leg."""
    if method.once and method.word == before.word:
        return f"{method.word} is there already, and a second one on the same leg makes no sense"
    for trait in Trait:
        if trait in before.undoes() & method.takes:
            return _WHY[trait].format(before=before.word, method=method.word)
    return None


def _way_out(methods: Sequence[MethodConfig], place: int, index: int) -> str:
    """The list in an order that works, if moving one of these two helps."""
    before, method = methods[place], methods[index]
    if _misfit(method, before):
        return "leave one of them out"
    words = [each.word for each in methods]
    words.insert(place, words.pop(index))
    return f"{method.word} must come before {before.word}: method: [{', '.join(words)}]"
