"""A topology: a U shape in which the server echoes what arrived, and the client confirms it."""

import torch

from simsplit.legs import Leg
from simsplit.protocol import Crossing, Protocol
from simsplit.topologies import Topology
from simsplit.topologies.u_shaped import U_SHAPED, UShapedClient, UShapedServer

ECHO, CONFIRMED = Leg("echo", up=False), Leg("confirmed", up=True)


class EchoClient(UShapedClient):
    """Says of how many rows nothing is missing; integers cross like anything else."""

    def confirm(self, pending):
        """Make the tensors of CONFIRMED."""
        return (torch.tensor([len(pending.sent)]),)

    def compare(self, packet, pending):
        """Take ECHO: the values as the server has them, and how many rows there are."""
        echoed, rows = packet.tensors
        assert int(rows) == len(echoed)

    makes = {**UShapedClient.makes, CONFIRMED: confirm}
    takes = {**UShapedClient.takes, ECHO: compare}


class EchoServer(UShapedServer):
    """Echoes before it sends features."""

    def echo(self, flight):
        """Make the tensors of ECHO, for each member of a cohort."""
        return [(m.arrived.detach(), torch.tensor([len(m.arrived)])) for m in flight.members]

    def note(self, flight, packets):
        """Accept CONFIRMED, of which nothing is needed: that it came is counted."""

    makes = {**UShapedServer.makes, ECHO: echo}
    takes = {**UShapedServer.takes, CONFIRMED: note}


SMASHED, FEATURES, *BACK = U_SHAPED.training.crossings
TOPOLOGIES = {
    "echo": Topology(
        "a U shape whose server echoes what it got",
        training=Protocol(
            (SMASHED, Crossing(ECHO), Crossing(CONFIRMED), FEATURES, *BACK),
            closing=U_SHAPED.training.closing,
        ),
        inference=U_SHAPED.inference,
        client=EchoClient,
        server=EchoServer,
        served=U_SHAPED.served,
    )
}
