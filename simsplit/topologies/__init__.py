"""Topologies define the legs that cross the cut and the work of each side, in one file each."""

from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Literal

from simsplit.packets import Leg
from simsplit.topologies.api import API
from simsplit.topologies.topology import Topology as Topology
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.topologies.vanilla import VANILLA

TopologyName = Literal["u_shaped", "vanilla", "api"]
TOPOLOGIES: dict[str, Topology] = {"u_shaped": U_SHAPED, "vanilla": VANILLA, "api": API}
USUAL: TopologyName = "u_shaped"
"""The topology of a scenario that names none."""
CARRIED = (Leg.HANDOVER, Leg.BROADCAST)
"""The legs beside a step under any topology: weights that are handed over or averaged, and methods'
announcements."""


def _order_legs() -> Iterator[Leg]:
    """Yield the legs of all shipped topologies, each behind the legs that it follows in a step."""
    # Sorted by all topologies, so that a leg that only one has stands at its place in a step.
    before: dict[Leg, list[Leg]] = {}
    for topology in TOPOLOGIES.values():
        for first, then in pairwise(topology.training.legs):
            before.setdefault(first, [])
            before.setdefault(then, []).append(first)
    yield from TopologicalSorter(before).static_order()


LEGS = (*_order_legs(), *CARRIED)
"""Every leg of the shipped topologies, in the order of tables and colours."""


def sort_legs(legs: Iterable[str]) -> list[str]:
    """Sort the names of legs for reports: a step's in its order, then those beside a step.

    Legs of plugins' topologies come last, in the given order.

    >>> sort_legs(["handover", "echo", "features", "smashed"])
    ['smashed', 'features', 'handover', 'echo']
    """
    given = list(dict.fromkeys(map(str, legs)))
    return [*(leg for leg in LEGS if leg in given), *(leg for leg in given if leg not in LEGS)]


def describe_leg(leg: str) -> str:
    """Return the words for a leg of this name, which may belong to a plugin's topology.

    >>> describe_leg("features_grad"), describe_leg("echo_grad")
    ('gradients of features', 'echo grad')
    """
    return next((each.words for each in LEGS if each == leg), leg.replace("_", " "))


def find_topology(fits: Callable[[Topology], bool]) -> str:
    """Return the name of the first shipped topology that fits, or of the usual one if none does.

    Messages advise it as a remedy.
    """
    return next((name for name, each in TOPOLOGIES.items() if fits(each)), USUAL)
