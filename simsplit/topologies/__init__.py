"""Topologies: what crosses the cut, and what each side does with it, one file each."""

from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Literal

from simsplit.packets import Leg
from simsplit.topologies.api import API
from simsplit.topologies.base import Topology
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.topologies.vanilla import VANILLA

TopologyName = Literal["u_shaped", "vanilla", "api"]
TOPOLOGIES: dict[str, Topology] = {"u_shaped": U_SHAPED, "vanilla": VANILLA, "api": API}
USUAL: TopologyName = "u_shaped"
"""The topology of a scenario that names none."""
CARRIED = (Leg.HANDOVER, Leg.BROADCAST)
"""The legs beside a step, under any topology: weights that are handed over or averaged, and what
methods announce."""


def _in_order_of_a_step() -> Iterator[Leg]:
    """List the legs of all shipped topologies, each behind those that it follows in a step."""
    before: dict[Leg, list[Leg]] = {}
    for topology in TOPOLOGIES.values():
        for first, then in pairwise(topology.training.legs):
            before.setdefault(first, [])
            before.setdefault(then, []).append(first)
    yield from TopologicalSorter(before).static_order()


LEGS = (*_in_order_of_a_step(), *CARRIED)
"""Every leg of the shipped topologies, in the order of tables and colours."""


def in_order(legs: Iterable[str]) -> list[str]:
    """Sort the names of legs as reports show them: in the order of a step, then what is carried
    beside it, then those of other topologies in the order in which they are given.

    >>> in_order(["handover", "echo", "features", "smashed"])
    ['smashed', 'features', 'handover', 'echo']
    """
    given = list(dict.fromkeys(map(str, legs)))
    return [*(leg for leg in LEGS if leg in given), *(leg for leg in given if leg not in LEGS)]


def words_of(leg: str) -> str:
    """Return the words of a leg by its name, which may be one that only a plugin knows.

    >>> words_of("features_grad"), words_of("echo_grad")
    ('gradients of features', 'echo grad')
    """
    return next((each.words for each in LEGS if each == leg), leg.replace("_", " "))


def first_with(fits: Callable[[Topology], bool]) -> str:
    """Return the name of the first shipped topology that fits, to advise it; the usual one if none
    does.
    """
    return next((name for name, each in TOPOLOGIES.items() if fits(each)), USUAL)


__all__ = [
    "CARRIED",
    "LEGS",
    "TOPOLOGIES",
    "USUAL",
    "Topology",
    "TopologyName",
    "first_with",
    "in_order",
    "words_of",
]
