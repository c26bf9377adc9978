"""What a topology is: two protocols as data, and an end for each side."""

from dataclasses import dataclass

from simsplit.packets import Leg
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.server_end import ServerEnd
from simsplit.protocol import Protocol


@dataclass(frozen=True)
class Topology:
    """Which segments live where, and what crosses between them."""

    meaning: str
    """In a line, for whoever chooses."""
    training: Protocol
    inference: Protocol
    """What crosses when nobody learns: in evaluation, and when texts are continued."""
    client: type[ClientEnd]
    server: type[ServerEnd]
    served: frozenset[str]
    """The segments that the server owns."""

    @property
    def protocols(self) -> tuple[Protocol, Protocol]:
        """Of training and of inference."""
        return self.training, self.inference

    @property
    def tail_with_client(self) -> bool:
        """Whether clients have the tail, and compute the task's loss."""
        return "tail" not in self.served

    def has(self, leg: Leg) -> bool:
        """Whether training crosses on a leg."""
        return leg in self.training.legs
