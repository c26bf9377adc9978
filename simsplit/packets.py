"""This module defines what crosses between a client and the server: packets of tensors on legs."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from simsplit.legs import ClientId, Leg


class TensorForm(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorForm":
        """Return the form of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)


@dataclass(frozen=True, slots=True)
class Packet:
    """Tensors that cross the cut; they are detached, so no autograd graph spans both sides."""

    client: ClientId
    leg: Leg
    round: int
    step: int
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    """Names of the tensors, on legs that carry weights (HANDOVER, BROADCAST); not in `nbytes`."""
    session: int | None = None
    """Number of the session, if a session takes several passes."""
    position: int = 0
    """Number of tokens that earlier passes of the session have processed."""
    sealed: Tensor | None = None
    """Encrypted contents that only the receivers can read; `tensors` then have only their form."""

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "Packet":
        """Return this packet with other tensors."""
        return self.with_names(self.names, tensors)

    def with_names(self, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> "Packet":
        """Return this packet with other tensors and their names."""
        # Written out: `replace` takes longer than a small layer.
        return Packet(
            *(self.client, self.leg, self.round, self.step, tensors, names),
            session=self.session,
            position=self.position,
            sealed=self.sealed,
        )

    def answer(self, leg: Leg, tensors: tuple[Tensor, ...]) -> "Packet":
        """Return a packet that answers this one on another leg."""
        return Packet(
            *(self.client, leg, self.round, self.step, tensors),
            session=self.session,
            position=self.position,
        )

    def to_device(self, device: torch.device) -> "Packet":
        """Return this packet with its tensors on a device."""
        return self.with_tensors(tuple(tensor.to(device) for tensor in self.tensors))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        tensors = self.tensors
        # Asked of every packet, and mostly of one tensor: a sum would take three times as long.
        return tensors[0].nbytes if len(tensors) == 1 else sum(each.nbytes for each in tensors)


Packets = tuple[Packet, ...]
"""The packets that one side sends in one turn."""
