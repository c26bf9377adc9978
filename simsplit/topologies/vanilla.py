"""Under a vanilla cut the server holds trunk and tail, and clients send it their labels."""

from typing import ClassVar

from torch import Tensor

from simsplit.legs import Leg
from simsplit.parties import client_end, server_end
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.server_end import ServerEnd
from simsplit.protocols import PROTOCOLS
from simsplit.topologies.topology import Topology


class VanillaClient(ClientEnd):
    """The client of a vanilla cut, which holds the head."""

    makes: ClassVar[client_end.Makes] = {
        Leg.SMASHED: ClientEnd.smash,
        Leg.LABELS: ClientEnd.send_labels,
    }
    takes: ClassVar[client_end.Takes] = {
        Leg.SMASHED_GRAD: ClientEnd.carry_back,
    }

    def through_tail(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Return the features unchanged: the server has applied its tail already."""
        return lifted


class VanillaServer(ServerEnd):
    """The server of a vanilla cut, which holds trunk and tail."""

    makes: ClassVar[server_end.Makes] = {
        Leg.FEATURES: ServerEnd.send_outputs,
        Leg.SMASHED_GRAD: ServerEnd.send_smashed_grads,
    }
    takes: ClassVar[server_end.Takes] = {
        Leg.SMASHED: ServerEnd.through_trunk,
        Leg.LABELS: ServerEnd.learn_labels,
    }


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
