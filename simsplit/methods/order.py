"""This module refuses lists of methods that cannot be combined, or not in the given order.

On each leg a batch starts with all traits. Every method requires some traits, and ends some for the
methods after it. All rules of composition follow from these two lists.
"""

from collections.abc import Sequence

from simsplit.errors import ScenarioError
from simsplit.methods.method import MethodConfig, Trait
from simsplit.packets import Leg

_WHY = {
    Trait.SAMPLES: "{method} needs one row per sample, and {before} before it mixes rows",
    Trait.ALONE: "{method} adds texts, and {before} before it needs the batch's texts alone",
    Trait.SHAPE: "{method} needs the cut's shape, and {before} before it flattens the data",
    Trait.VALUES: "{method} changes values, and {before} before it selects the values to send",
    Trait.NUMBERS: "{method} needs values, and {before} before it packs them to bits",
    Trait.FORMAT: "{method} sets the number format, and {before} before it sets it too",
}


def refuse_disorder(methods: Sequence[MethodConfig]) -> None:
    """Raise ScenarioError if methods cannot be combined, or not in this order."""
    for leg in (Leg.SMASHED, Leg.FEATURES):
        chain = {index: each for index, each in enumerate(methods) if leg in each.acts_on}
        for index, method in chain.items():
            for place in range(index):
                if place in chain and (why := _find_conflict(chain[place], method)):
                    fix = _suggest_fix(methods, place, index)
                    raise ScenarioError(f"method.{index}.kind", f"{why}; {fix}")


def _find_conflict(before: MethodConfig, method: MethodConfig) -> str | None:
    """Return why a method cannot follow another one on a leg, or None if it can."""
    if method.once and method.kind_name == before.kind_name:
        return f"{method.kind_name} may be listed only once per leg, and it is listed before"
    for trait in Trait:
        if trait in before.get_ended_traits() & method.required_traits:
            return _WHY[trait].format(before=before.kind_name, method=method.kind_name)
    return None


def _suggest_fix(methods: Sequence[MethodConfig], place: int, index: int) -> str:
    """Return an order that resolves the conflict, or the advice to leave one method out."""
    before, method = methods[place], methods[index]
    if _find_conflict(method, before):
        return "leave one of them out"
    kinds = [each.kind_name for each in methods]
    kinds.insert(place, kinds.pop(index))
    return f"{method.kind_name} must come before {before.kind_name}: method: [{', '.join(kinds)}]"
