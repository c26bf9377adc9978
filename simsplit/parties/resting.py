"""Where clients rest between their turns: in memory, as flat tensors."""

from collections.abc import Iterator
from typing import Protocol

from simsplit.legs import ClientId
from simsplit.parties.flat import Flat
from simsplit.parties.tally import Tally


class Rest(Protocol):
    """A place for what clients at rest remember."""

    def __contains__(self, number: object) -> bool:
        """Return whether a client rests here; others are in their state before training."""

    def __iter__(self) -> Iterator[ClientId]:
        """Return the numbers of the clients that rest here."""

    def prepare(self, number: ClientId) -> Flat:
        """Return a flat form for a client to be copied into, which `put` then keeps."""

    def put(self, number: ClientId, flat: Flat) -> None:
        """Keep what a client remembers."""

    def get(self, number: ClientId) -> Flat | None:
        """Return what a client remembers; None if it is in its state before training."""

    def take_tally(self, number: ClientId) -> Tally:
        """Return a client's losses of the round, and forget them."""

    def clear(self) -> None:
        """Forget what clients remember: each is then in its state before training."""


class InMemory(Rest):
    """Flat forms of clients that have been asked."""

    def __init__(self) -> None:
        self.flats: dict[ClientId, Flat] = {}

    def __contains__(self, number: object) -> bool:
        return number in self.flats

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.flats)

    def prepare(self, number: ClientId) -> Flat:
        """Return the client's flat form, so that its tensors are written over."""
        return self.flats.get(number) or Flat()

    def put(self, number: ClientId, flat: Flat) -> None:
        """Keep the flat form itself."""
        self.flats[number] = flat

    def get(self, number: ClientId) -> Flat | None:
        return self.flats.get(number)

    def take_tally(self, number: ClientId) -> Tally:
        flat = self.flats.get(number)
        if flat is None or flat.tally is None:
            return Tally()
        tally, flat.tally = flat.tally, None
        return tally

    def clear(self) -> None:
        self.flats.clear()
