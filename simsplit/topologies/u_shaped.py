"""In a U shape the client holds head, tail and labels; the server sees neither data nor labels."""

from typing import ClassVar

from simsplit.packets import Leg
from simsplit.parties import client_end, server_end
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocol import Crossing, Protocol
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
