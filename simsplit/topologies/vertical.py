"""Under a vertical cut clients are parties that hold columns of the same samples.

Each has a head of its own, and all feed one trunk in the same step. One party has the labels: it
keeps the tail, as in a U shape, or sends its labels to the server, as under a vanilla cut.
"""

from dataclasses import replace

from torch import Tensor

from simsplit.data.samples import widen_labels
from simsplit.parties.client_end import Pending
from simsplit.parties.joined import JoinedEnd
from simsplit.topologies.u_shaped import U_SHAPED, UShapedClient
from simsplit.topologies.vanilla import VANILLA, VanillaClient, VanillaServer


class VerticalClient(UShapedClient):
    """A party; the one with the labels has the tail."""

    def through_tail(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Run the tail on features, which of texts are of all parties' tokens."""
        return _fit_labels(super().through_tail(lifted, pending), pending)


class VerticalTaillessClient(VanillaClient):
    """A party where the server has the tail."""

    def through_tail(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Return the outputs, which of texts are of all parties' tokens."""
        return _fit_labels(super().through_tail(lifted, pending), pending)


def _fit_labels(outputs: Tensor, pending: Pending) -> Tensor:
    """Let the step's labels reach over all outputs, and return these."""
    pending.labels = widen_labels(pending.labels, outputs)
    if pending.step.labels is not None:
        pending.step.labels = pending.labels
    return outputs


class VerticalTailServer(JoinedEnd):
    """The server of parties that has the tail, and is sent labels."""

    makes = VanillaServer.makes


_MEANING = "clients are parties with columns of the same samples"
VERTICAL = replace(
    U_SHAPED,
    meaning=_MEANING,
    client=VerticalClient,
    server=JoinedEnd,
    sessions=False,
    joint=True,
    at_server=replace(
        VANILLA,
        meaning=_MEANING,
        client=VerticalTaillessClient,
        server=VerticalTailServer,
        sessions=False,
        joint=True,
    ),
)
