"""What crosses between a client and the server: a packet of tensors on one leg."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

ClientId = int
"""A client's number, 0-based and stable for the whole run."""


class Leg(str):
    """Direction and meaning of a crossing, as an interned string.

    The legs below are those of the shipped topologies. A topology of another shape declares its
    own: `Leg("echo", up=False)`.
    """

    up: bool
    """Whether packets travel from a client towards the server, or to the next client."""

    SMASHED: ClassVar["Leg"]
    FEATURES: ClassVar["Leg"]
    FEATURES_GRAD: ClassVar["Leg"]
    SMASHED_GRAD: ClassVar["Leg"]
    LABELS: ClassVar["Leg"]
    INPUTS: ClassVar["Leg"]
    ADAPTERS: ClassVar["Leg"]
    ADAPTERS_GRAD: ClassVar["Leg"]
    HANDOVER: ClassVar["Leg"]
    BROADCAST: ClassVar["Leg"]
    _known: ClassVar[dict[str, "Leg"]] = {}

    def __new__(cls, name: str, *, up: bool | None = None) -> "Leg":
        """A leg by its name; `up` declares one that is not known yet."""
        known = cls._known.get(name)
        if known is None:
            if up is None:
                raise ValueError(f"no leg is called '{name}'; known: {', '.join(cls._known)}")
            known = cls._known[name] = super().__new__(cls, name)
            known.up = up
        return known

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by name, so that it is the same object in another process."""
        return _declared, (str(self), self.up)


def _declared(name: str, up: bool) -> Leg:
    return Leg(name, up=up)


Leg.SMASHED = Leg("smashed", up=True)
Leg.FEATURES = Leg("features", up=False)
Leg.FEATURES_GRAD = Leg("features_grad", up=True)
Leg.SMASHED_GRAD = Leg("smashed_grad", up=False)
Leg.LABELS = Leg("labels", up=True)
Leg.INPUTS = Leg("inputs", up=True)
Leg.ADAPTERS = Leg("adapters", up=True)
Leg.ADAPTERS_GRAD = Leg("adapters_grad", up=False)
Leg.HANDOVER = Leg("handover", up=True)
Leg.BROADCAST = Leg("broadcast", up=False)


@dataclass(frozen=True, slots=True)
class Packet:
    """Tensors that cross the cut; detached, so no autograd graph spans the two sides."""

    client: ClientId
    leg: Leg
    round: int
    step: int
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    """The name of each tensor on legs that carry weights (HANDOVER, BROADCAST); not counted."""
    session: int | None = None
    """The session that it belongs to, if a session takes several passes."""
    position: int = 0
    """How many tokens earlier passes of the session have processed."""
    sealed: Tensor | None = None
    """What is in it, for its receivers alone; its tensors then tell their form, and no values."""

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "Packet":
        """The same packet with other contents."""
        return replace(self, tensors=tensors)

    def renamed(self, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> "Packet":
        """The same packet with contents of other names."""
        return replace(self, names=names, tensors=tensors)

    def answered(self, leg: Leg, tensors: tuple[Tensor, ...]) -> "Packet":
        """What goes back for it, on another leg."""
        return Packet(
            *(self.client, leg, self.round, self.step, tensors),
            session=self.session,
            position=self.position,
        )

    def on(self, device: torch.device) -> "Packet":
        """The same packet with its tensors on a device."""
        return self.with_tensors(tuple(tensor.to(device) for tensor in self.tensors))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)


Packets = tuple[Packet, ...]
"""What one side sends in one turn."""
