"""What a topology is: two protocols as data, and an end for each side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.packets import Leg
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocol import Protocol

Tensors = tuple[Tensor, ...]
Content = Literal["cut", "features", "outputs", "labels", "inputs", "adapters"]
"""What the first tensor of a packet is: a batch at the cut or of features (or its gradient), the
model's outputs, labels, tokens, or adapters (or their gradient)."""


def _context(batch: Batch) -> Tensors:
    return batch.context


def _headed(head: nn.Module, batch: Batch) -> Tensor:
    made: Tensor = head(batch.inputs, *batch.context)
    return made


@dataclass(frozen=True)
class Topology:
    """Where each segment lives, and what crosses the cut."""

    meaning: str
    """One line of description, for listings."""
    training: Protocol
    inference: Protocol
    """What crosses when nothing is learned: in evaluation and generation."""
    client: type[ClientEnd]
    server: type[ServerEnd]
    served: frozenset[str]
    """The segments that the server owns."""
    contents: Mapping[Leg, Content] = field(default_factory=dict)
    """What each leg carries, for those who check packets of a remote party against it. A leg that
    is not named is checked by the methods alone."""
    whole_model: bool | None = None
    """Whether the server has a whole transformer that clients adapt, rather than part of a network
    that is cut; None: either."""
    many_servers: bool = False
    """Whether clients can ask several servers, each of which has the same model."""
    accounted: bool = False
    """Whether it is known which private inputs each leg depends on, so that noise on a leg gives a
    guarantee, and what each turn computes, so that a run can be timed on other devices."""
    sessions: bool = False
    """Whether its ends go on with texts pass by pass (see `parties.sessions`)."""
    of_texts: bool = False
    """Whether samples can be texts alone."""
    headed: Callable[[nn.Module, Batch], Tensor] = _headed
    """The head's output for a batch."""
    beside: Callable[[Batch], Tensors] = _context
    """The trunk's inputs beside that output: masks, unless it says otherwise."""

    @property
    def protocols(self) -> tuple[Protocol, Protocol]:
        """The protocols of training and of inference."""
        return self.training, self.inference

    @property
    def tail_with_client(self) -> bool:
        """Whether clients have the tail, and compute the task's loss."""
        return "tail" not in self.served

    @property
    def legs(self) -> tuple[Leg, ...]:
        """All legs of a step, in order, and those that only inference has."""
        return tuple(dict.fromkeys((*self.training.legs, *self.inference.legs)))

    @property
    def returned(self) -> frozenset[Leg]:
        """The legs on which the server returns gradients. A phase can do without them: where
        nothing before the cut learns.
        """
        return frozenset(leg for leg in self.training.gradients if not leg.up)

    def has(self, leg: Leg) -> bool:
        """Whether training uses a leg."""
        return leg in self.training.legs
