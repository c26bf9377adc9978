"""Topologies: what crosses the cut, and what each side does with it, one file each."""

from typing import Literal

from simsplit.topologies.api import API
from simsplit.topologies.base import Topology
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.topologies.vanilla import VANILLA

TopologyName = Literal["u_shaped", "vanilla", "api"]
TOPOLOGIES: dict[str, Topology] = {"u_shaped": U_SHAPED, "vanilla": VANILLA, "api": API}

__all__ = ["TOPOLOGIES", "Topology", "TopologyName"]
