"""A topology consists of two protocols, given as data, and of an end for each side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.needs import Given, Need
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocol import Protocol

Tensors = tuple[Tensor, ...]
Content = Literal["cut", "features", "outputs", "labels", "inputs", "adapters"]
"""The content of a packet's first tensor: a batch at the cut or of features (or its gradient), the
model's outputs, labels, tokens, or adapters (or their gradient)."""


def _get_context(batch: Batch) -> Tensors:
    return batch.context


def _run_head(head: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = head(batch.inputs, *batch.context)
    return outputs


@dataclass(frozen=True)
class Topology:
    """The side that has each segment, and the legs that cross the cut."""

    meaning: str
    """One line of description, for listings."""
    training: Protocol
    inference: Protocol
    """The protocol without learning, of evaluation and generation."""
    client: type[ClientEnd]
    server: type[ServerEnd]
    served: frozenset[str]
    """The segments that the server owns."""
    contents: Mapping[Leg, Content] = field(default_factory=dict)
    """The content of each leg, by which packets of a remote party are checked. A leg that is not
    named is checked by the methods alone."""
    whole_model: bool | None = None
    """Whether the server has a whole transformer that clients adapt (True), or a part of a network
    that is cut (False); None: either."""
    many_servers: bool = False
    """Whether clients can ask several servers, each of which has the same model."""
    accounted: bool = False
    """Whether the private inputs that each leg depends on are known, so that noise on a leg gives a
    guarantee, and the work of each turn, so that a run can be timed on other devices."""
    sessions: bool = False
    """Whether its ends can write texts in sessions, in which each token crosses once."""
    of_texts: bool = False
    """Whether samples must be texts."""
    joint: bool = False
    """Whether clients are parties, who take each step together on portions of the same samples."""
    at_server: "Topology | None" = None
    """The topology that it becomes where the server has the tail, if parties may choose that."""
    headed: Callable[[nn.Module, Batch], Tensor] = _run_head
    """Compute the head's output for a batch."""
    beside: Callable[[Batch], Tensors] = _get_context
    """Return the trunk's inputs beside the head's output; by default a batch's masks."""

    def select_protocols(self, *, has_labels: bool) -> tuple[Protocol, Protocol]:
        """Return the protocols of one client, of training and of inference.

        A party without labels crosses fewer legs in training.
        """
        training = self.training
        if self.joint and not has_labels:
            training = training.select_without(training.list_legs_of_labels())
        return training, self.inference

    @property
    def tail_with_client(self) -> bool:
        """Whether clients have the tail, and compute the task's loss."""
        return "tail" not in self.served

    @property
    def legs(self) -> tuple[Leg, ...]:
        """All legs of a step, in order, and then the legs that only inference has."""
        return tuple(dict.fromkeys((*self.training.legs, *self.inference.legs)))

    @property
    def returned(self) -> frozenset[Leg]:
        """The legs on which the server returns gradients.

        A phase leaves them out if nothing before the cut learns.
        """
        return frozenset(leg for leg in self.training.gradients if not leg.up)

    def has(self, leg: Leg) -> bool:
        """Tell whether training uses a leg."""
        return leg in self.training.legs

    def can_satisfy(self, need: Need) -> bool:
        """Return whether a need can be satisfied here: true of needs that concern no topology."""
        gives = {
            Given.CROSSES: need.leg in self.training.legs,
            Given.PARTIES: self.joint,
            Given.SCORING: self.tail_with_client,
            Given.SESSIONS: self.sessions and self.tail_with_client,
            # A whole model is frozen; its adapters learn.
            Given.LEARNED_TRUNK: self.whole_model is not True,
        }
        return gives.get(need.what, True)
