"""A fine-tuning API receives public inputs and a client's adapters, and returns states.

The server has a pretrained transformer and keeps nothing between calls. The client has the labels,
adapters and a head of its own, and one optimizer over both (P3EFT, section 3).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties import client_end, server_end
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.server_end import Flight, ServerEnd
from simsplit.protocols import PROTOCOLS
from simsplit.topologies.topology import Topology

Tensors = tuple[Tensor, ...]


def _get_inputs(batch: Batch) -> Tensors:
    """Return a batch's tokens, in four bytes each, and the mask of real ones."""
    # An eight-byte token, as torch has it, would double the bytes that cross.
    return batch.inputs.int(), batch.real if batch.mask is None else batch.mask


def _get_adapters(head: nn.Module, batch: Batch) -> Tensor:
    """Return a client's adapters, which are the same for every batch."""
    made: Tensor = head()
    return made


class ApiClient(ClientEnd):
    """The client of an API, which holds adapters and a head."""

    def send_inputs(self, pending: Pending) -> Tensors:
        """Return the tokens, once for each server that is asked."""
        for learner in self.learners:
            learner.train(pending.step.training)
        batch = self.stack.transform(pending.given, pending.step)
        pending.labels = batch.labels.amax(1)  # all but one of a text's labels are ignored
        if pending.step.labels is not None:
            pending.step.labels = pending.labels
        inputs = _get_inputs(batch)
        pending.plain = {Leg.INPUTS: sum(each.nbytes for each in inputs)}
        # Servers share nothing, so each needs the tokens.
        return inputs * self._count_asked(pending)

    def send_adapters(self, pending: Pending) -> Tensors:
        """Return all sets of adapters, once for each server that is asked."""
        learned = torch.is_grad_enabled() and pending.phase.gradients
        with torch.set_grad_enabled(learned):
            pending.sent = _get_adapters(self.head, pending.given)
        texts, adapters = len(pending.labels), pending.sent.nbytes
        states = texts * torch.Size(self.features).numel() * pending.sent.element_size()
        pending.plain = {
            **pending.plain,
            Leg.ADAPTERS: adapters,
            Leg.FEATURES: states,
            Leg.FEATURES_GRAD: states,
            Leg.ADAPTERS_GRAD: adapters,
        }
        packed = self.stack.pack(Leg.ADAPTERS, pending.sent.detach(), pending.step)
        return packed * self._count_asked(pending)

    def _count_asked(self, pending: Pending) -> int:
        """Return the number of servers that a step asks.

        Without gradients it is one; otherwise each message of a gradient goes to another server, as
        far as there are servers.
        """
        back = pending.step.training and pending.phase.gradients
        return min(self.servers, self.stack.count_messages) if back else 1

    makes: ClassVar[client_end.Makes] = {
        Leg.INPUTS: send_inputs,
        Leg.ADAPTERS: send_adapters,
        Leg.FEATURES_GRAD: ClientEnd.answer,
    }
    takes: ClassVar[client_end.Takes] = {
        Leg.FEATURES: ClientEnd.score,
        Leg.ADAPTERS_GRAD: ClientEnd.carry_back,
    }


class ApiServer(ServerEnd):
    """The server of an API, which holds the transformer."""

    def read_inputs(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Keep the tokens for the adapters that follow; further tensors are copies of them."""
        for member, packet in zip(flight.members, packets, strict=True):
            member.context = packet.tensors[:2]

    def apply_adapters(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Compute the states of each client's texts with its adapters."""
        self.learner.train(flight.training)
        grad = torch.enable_grad() if flight.training else torch.no_grad()
        for member, packet in zip(flight.members, packets, strict=True):
            # Client by client: each has adapters of its own, so there is no common batch.
            arrived = self.stack.unpack(Leg.ADAPTERS, packet.tensors, member.step)
            member.arrived = arrived.detach().requires_grad_(flight.training)
            with grad, self.autocast():
                states = self.trunk(member.arrived, *member.context)
                member.features = self.stack.encode(states, member.step)

    def adapter_gradients(self, flight: Flight) -> list[Tensors]:
        """Return the gradients of each member's adapters, one per message of its gradient."""
        return self.pack_grads(Leg.ADAPTERS_GRAD, flight)

    makes: ClassVar[server_end.Makes] = {
        Leg.FEATURES: ServerEnd.send_features,
        Leg.ADAPTERS_GRAD: adapter_gradients,
    }
    takes: ClassVar[server_end.Takes] = {
        Leg.INPUTS: read_inputs,
        Leg.ADAPTERS: apply_adapters,
        Leg.FEATURES_GRAD: ServerEnd.carry_back,
    }


API = Topology(
    "the server offers a whole transformer, clients have adapters, head and labels",
    *PROTOCOLS["api"],
    client=ApiClient,
    server=ApiServer,
    served=frozenset({"trunk"}),
    contents={
        Leg.INPUTS: "inputs",
        Leg.ADAPTERS: "adapters",
        Leg.FEATURES: "features",
        Leg.FEATURES_GRAD: "features",
        Leg.ADAPTERS_GRAD: "adapters",
    },
    whole_model=True,
    many_servers=True,
    accounted=True,
    of_texts=True,
    headed=_get_adapters,
    beside=_get_inputs,
)
