"""What a topology is: two protocols as data, and an end for each side."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.packets import Leg
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocol import Protocol

Tensors = tuple[Tensor, ...]


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
    sessions: bool = False
    """Whether its ends go on with texts pass by pass (see `parties.sessions`)."""
    of_texts: bool = False
    """Whether samples can be texts alone."""
    headed: Callable[[nn.Module, Batch], Tensor] = _headed
    """What the head makes of a batch."""
    beside: Callable[[Batch], Tensors] = _context
    """What the trunk is given of the batch beside that: masks, unless it says otherwise."""

    @property
    def protocols(self) -> tuple[Protocol, Protocol]:
        """The protocols of training and of inference."""
        return self.training, self.inference

    @property
    def tail_with_client(self) -> bool:
        """Whether clients have the tail, and compute the task's loss."""
        return "tail" not in self.served

    def has(self, leg: Leg) -> bool:
        """Whether training uses a leg."""
        return leg in self.training.legs
