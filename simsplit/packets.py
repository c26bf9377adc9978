"""What crosses between a client and the server: a packet of tensors on one leg."""

from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

ClientId = int
"""A client's number, 0-based and stable for the whole run."""


class Leg(StrEnum):
    """The direction and meaning of a crossing. UP goes to the server, DOWN to a client."""

    SMASHED = "smashed"
    FEATURES = "features"
    FEATURES_GRAD = "features_grad"
    SMASHED_GRAD = "smashed_grad"
    LABELS = "labels"
    HANDOVER = "handover"
    BROADCAST = "broadcast"

    @property
    def up(self) -> bool:
        """Whether the packet travels from a client towards the server or the next client."""
        return self in _UP


_UP = frozenset({Leg.SMASHED, Leg.FEATURES_GRAD, Leg.LABELS, Leg.HANDOVER})


@dataclass(frozen=True, slots=True)
class Packet:
    """Tensors on their way across the cut; detached, so no graph spans the two sides."""

    client: ClientId
    leg: Leg
    round: int
    step: int
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    """What each tensor is, on the legs that carry weights (HANDOVER, BROADCAST); not counted."""

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "Packet":
        """The same packet with other contents."""
        return replace(self, tensors=tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors themselves, counted."""
        return sum(tensor.nbytes for tensor in self.tensors)
