"""Clients of a crowd take seats: one that is free, or a new one while all are in a step."""

from types import SimpleNamespace
from typing import Any

import pytest

from simsplit.parties import seats
from simsplit.parties.seats import Kept, Roster


class _Seat:
    """A seat that counts how often it is asked whether it is free."""

    busy_now = True
    asked = 0

    def __init__(self, client: Any, layouts: list[Any], kept: Kept) -> None:
        self.client = client

    @property
    def busy(self) -> bool:
        """Count the question."""
        type(self).asked += 1
        return self.busy_now

    def become(self, number: int, origin: Any, flat: Any) -> None:
        """Take another client's number."""
        self.client.number = number

    def leave(self, flat: Any) -> None:
        """Keep nothing."""

    def enter(self, call: Any) -> None:
        """Enter nothing."""


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Roster:
    """A thousand clients, of which at most eight have a seat between steps."""
    seat = type("Counted", (_Seat,), {})
    monkeypatch.setattr(seats, "Seat", seat)
    origin: Any = SimpleNamespace(make=lambda number: SimpleNamespace(number=number))
    return Roster(range(1000), origin, 8, Kept(), sparse=True)


def test_a_round_in_the_middle_of_a_step_asks_each_seat_few_times(crowd: Roster) -> None:
    live = [crowd[number] for number in range(1000)]
    assert [client.number for client in live] == [*range(1000)]
    assert len({id(client) for client in live}) == 1000
    assert seats.Seat.asked < 20_000  # type: ignore[attr-defined]


def test_seats_are_taken_again_as_soon_as_they_are_free(crowd: Roster) -> None:
    for number in range(100):
        crowd[number]
    taken = len(crowd._seats)
    assert taken == 100
    seats.Seat.busy_now = False  # type: ignore[attr-defined]
    for number in range(100, 300):
        crowd[number]
    # Until the next look a few more seats are made; then each one that comes takes the oldest.
    assert len(crowd._seats) <= taken * 9 // 8 + 1
    crowd.load_own({})
    for number in range(50):
        crowd[number]
    assert len(crowd._seats) == 8
