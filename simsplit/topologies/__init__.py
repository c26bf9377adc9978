"""Topologies define the legs that cross the cut and the work of each side, in one file each."""

from collections.abc import Callable

from simsplit.protocols import USUAL as USUAL
from simsplit.protocols import TopologyName as TopologyName
from simsplit.topologies.api import API
from simsplit.topologies.topology import Topology as Topology
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.topologies.vanilla import VANILLA
from simsplit.topologies.vertical import VERTICAL

TOPOLOGIES: dict[str, Topology] = {
    "u_shaped": U_SHAPED,
    "vanilla": VANILLA,
    "api": API,
    "vertical": VERTICAL,
}


def find_topology(fits: Callable[[Topology], bool]) -> str:
    """Return the name of the first shipped topology that fits, or of the usual one if none does.

    Messages advise it as a remedy.
    """
    return next((name for name, each in TOPOLOGIES.items() if fits(each)), USUAL)
