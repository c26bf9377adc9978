"""In a U shape the client holds head, tail and labels; the server sees neither data nor labels."""

from typing import ClassVar

from simsplit.legs import Leg
from simsplit.parties import client_end, server_end
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocols import PROTOCOLS
from simsplit.topologies.topology import Topology


class UShapedClient(ClientEnd):
    """The client of a U shape, which holds head and tail."""

    makes: ClassVar[client_end.Makes] = {
        Leg.SMASHED: ClientEnd.smash,
        Leg.FEATURES_GRAD: ClientEnd.answer,
    }
    takes: ClassVar[client_end.Takes] = {
        Leg.FEATURES: ClientEnd.score,
        Leg.SMASHED_GRAD: ClientEnd.carry_back,
    }


class UShapedServer(ServerEnd):
    """The server of a U shape, which holds the trunk."""

    makes: ClassVar[server_end.Makes] = {
        Leg.FEATURES: ServerEnd.send_features,
        Leg.SMASHED_GRAD: ServerEnd.send_smashed_grads,
    }
    takes: ClassVar[server_end.Takes] = {
        Leg.SMASHED: ServerEnd.through_trunk,
        Leg.FEATURES_GRAD: ServerEnd.carry_back,
    }


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
