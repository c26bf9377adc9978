"""Under a vanilla cut the server holds trunk and tail, and clients send it their labels."""

from typing import ClassVar

from torch import Tensor

from simsplit.legs import Leg
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.server_end import Makes, ServerEnd
from simsplit.protocols import PROTOCOLS
from simsplit.topologies.topology import Topology


class VanillaClient(ClientEnd):
    """The client of a vanilla cut, which holds the head."""

    def through_tail(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Return the features unchanged: the server has applied its tail already."""
        return lifted


class VanillaServer(ServerEnd):
    """The server of a vanilla cut, which holds trunk and tail."""

    makes: ClassVar[Makes] = {**ServerEnd.makes, Leg.FEATURES: ServerEnd.send_outputs}


VANILLA = Topology(
    "the server has the tail and sees labels",
    *PROTOCOLS["vanilla"],
    client=VanillaClient,
    server=VanillaServer,
    served=frozenset({"trunk", "tail"}),
    contents={
        Leg.SMASHED: "cut",
        Leg.LABELS: "labels",
        Leg.SMASHED_GRAD: "cut",
        Leg.FEATURES: "outputs",
    },
    whole_model=False,
    accounted=True,
    sessions=True,
)
