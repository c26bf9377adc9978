"""In a U shape the client holds head, tail and labels; the server sees neither data nor labels."""

from simsplit.legs import Leg
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocols import PROTOCOLS
from simsplit.topologies.topology import Topology


class UShapedClient(ClientEnd):
    """The client of a U shape, which holds head and tail."""


class UShapedServer(ServerEnd):
    """The server of a U shape, which holds the trunk."""


U_SHAPED = Topology(
    "clients keep tail and labels",
    *PROTOCOLS["u_shaped"],
    client=UShapedClient,
    server=UShapedServer,
    served=frozenset({"trunk"}),
    contents={
        Leg.SMASHED: "cut",
        Leg.FEATURES: "features",
        Leg.FEATURES_GRAD: "features",
        Leg.SMASHED_GRAD: "cut",
    },
    whole_model=False,
    accounted=True,
    sessions=True,
)
