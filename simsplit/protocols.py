"""The protocols of the shipped topologies, as data, and the order of all their legs.

What prints a finished run needs them, and neither of a topology's ends.
"""

from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from simsplit.legs import Leg
from simsplit.protocol import Crossing, Protocol

TopologyName = Literal["u_shaped", "vanilla", "api", "vertical"]
USUAL: TopologyName = "u_shaped"
"""The topology of a scenario that names none."""


class ProtocolPair(NamedTuple):
    """The protocols of a topology."""

    training: Protocol
    inference: Protocol
    """The protocol without learning, of evaluation and generation."""


_CUTS: Mapping[str, ProtocolPair] = {
    "u_shaped": ProtocolPair(
        # A backward pass counts as two: the tail does both passes (3) in one turn, the head in two.
        training=Protocol(
            (
                Crossing(Leg.SMASHED, gradient=Leg.SMASHED_GRAD, work={"head": 1}),
                Crossing(Leg.FEATURES, gradient=Leg.FEATURES_GRAD, work={"trunk": 1}),
                Crossing(Leg.FEATURES_GRAD, work={"tail": 3}),
                Crossing(Leg.SMASHED_GRAD, work={"trunk": 2}),
            ),
            closing={"head": 2},
        ),
        inference=Protocol(
            (Crossing(Leg.SMASHED, work={"head": 1}), Crossing(Leg.FEATURES, work={"trunk": 1})),
            closing={"tail": 1},
        ),
    ),
    "vanilla": ProtocolPair(
        # No features cross: the server has the labels, and computes the loss itself.
        training=Protocol(
            (
                Crossing(Leg.SMASHED, gradient=Leg.SMASHED_GRAD, work={"head": 1}),
                Crossing(Leg.LABELS),
                Crossing(Leg.SMASHED_GRAD, work={"trunk": 3, "tail": 3}),
            ),
            closing={"head": 2},
        ),
        # Held-out samples and labels are the clients', so outputs go back to them.
        inference=Protocol(
            (
                Crossing(Leg.SMASHED, work={"head": 1}),
                Crossing(Leg.FEATURES, work={"trunk": 1, "tail": 1}),
            )
        ),
    ),
    "api": ProtocolPair(
        training=Protocol(
            (
                Crossing(Leg.INPUTS),
                # No work: adapters are weights, which take no pass to make.
                Crossing(Leg.ADAPTERS, gradient=Leg.ADAPTERS_GRAD),
                Crossing(Leg.FEATURES, gradient=Leg.FEATURES_GRAD, work={"trunk": 1}),
                Crossing(Leg.FEATURES_GRAD, work={"tail": 3}),
                Crossing(Leg.ADAPTERS_GRAD, work={"trunk": 2}),
            ),
        ),
        inference=Protocol(
            (
                Crossing(Leg.INPUTS),
                # The server keeps nothing between calls, so each call brings the adapters.
                Crossing(Leg.ADAPTERS),
                Crossing(Leg.FEATURES, work={"trunk": 1}),
            ),
            closing={"tail": 1},
        ),
    ),
}
# Labels at a party cross as in a U shape, labels at the server as in a vanilla cut.
PROTOCOLS: Mapping[str, ProtocolPair] = {**_CUTS, "vertical": _CUTS["u_shaped"]}
JOINT: frozenset[str] = frozenset({"vertical"})
"""The topologies whose clients are parties, who take each step together."""


def choose_protocols(scenario: Mapping[str, Any]) -> ProtocolPair:
    """Return the protocols of a saved scenario, whose topology is a shipped one."""
    if (scenario.get("vertical") or {}).get("labels") == "server":
        return PROTOCOLS["vanilla"]
    return PROTOCOLS[scenario["topology"]]


CARRIED = (Leg.HANDOVER, Leg.BROADCAST)
"""The legs beside a step under any topology: weights that are handed over or averaged, and methods'
announcements."""


def _order_legs() -> Iterator[Leg]:
    """Yield the legs of all shipped topologies, each behind the legs that it follows in a step."""
    # Sorted by all topologies, so that a leg that only one has stands at its place in a step.
    before: dict[Leg, list[Leg]] = {}
    for protocols in PROTOCOLS.values():
        for first, then in pairwise(protocols.training.legs):
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
