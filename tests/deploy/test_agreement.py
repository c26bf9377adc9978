"""What all clients must agree on is decided by the majority, once all are here.

A client that greets with data of another form, first or last, is refused itself. Nobody else is.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import TINY
from door import Door, Guest, wait_until
from gists import says

from simsplit.deploy.connection import _read_end
from simsplit.deploy.frames import write_frame
from simsplit.errors import RunError, RunFailedError
from simsplit.scenario import parse
from simsplit.scenario.files import merge

pytestmark = pytest.mark.deploy
LIES: tuple[dict[str, Any], ...] = (
    {"classes": [str(9 - digit) for digit in range(10)]},
    {"mean": [0.9], "std": [0.1]},
)
PATIENCE_S = 0.5


@pytest.fixture
def make_door(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    doors: list[Door] = []

    def make(quorum: int | None = None) -> Door:
        given = parse(merge(TINY, {"clients": {"count": 3, "quorum": quorum}}))
        doors.append(Door(tmp_path, given, PATIENCE_S))
        return doors[-1]

    yield make
    for door in doors:
        door.close()


def greet(door: Door, liar: int, lie: dict[str, Any]) -> dict[int, Guest]:
    """Let the liar come first, and then the others; all are welcome."""
    guests = {}
    for number in (liar, *(n for n in range(3) if n != liar)):
        form = {**door.hello(number)["form"], **(lie if number == liar else {})}
        guests[number] = door.client(number, form=form)
        assert guests[number].hear()["welcome"]
    return guests


def assert_only_the_liar_is_refused(door: Door, guests: dict[int, Guest], liar: int) -> None:
    header = guests[liar].hear()
    assert header["over"] == "refused"
    assert set(header["differs"]) <= {"classes", "mean", "std"}
    assert all(door.gate.sessions[n].over is None for n in guests if n != liar)
    assert not [line for line in door.lines if "refused" in line and f"client {liar}" not in line]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: ",".join(lie))
@pytest.mark.parametrize("liar", range(3))
def test_with_a_quorum_the_run_begins_without_the_liar(make_door, liar, lie):
    door = make_door(quorum=2)
    guests = greet(door, liar, lie)
    door.gate.wait()
    assert_only_the_liar_is_refused(door, guests, liar)
    assert door.gate.left_out == {liar}
    honest = [n for n in range(3) if n != liar]
    assert door.gate.form == door.hello(honest[0])["form"]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: ",".join(lie))
@pytest.mark.parametrize("liar", range(3))
def test_without_a_quorum_it_is_the_liar_that_the_owner_can_leave_out(make_door, liar, lie):
    door = make_door()
    guests = greet(door, liar, lie)
    with pytest.raises(RunFailedError) as raised:
        door.gate.wait()
    assert says(str(raised.value), f"client {liar} was refused ... --without {liar}")
    assert_only_the_liar_is_refused(door, guests, liar)


def test_who_was_refused_may_come_again_with_other_data(make_door):
    door = make_door()
    door.gate.patience_s = 5
    guests = greet(door, 0, LIES[1])

    def come_again(line: str) -> None:
        if line.startswith("refused client 0"):
            samples = door.hello(0)["samples"] + 1
            guests[0] = door.client(0, samples=samples)

    door.gate.say = come_again
    door.gate.wait()
    assert guests[0].hear()["welcome"]
    assert door.gate.count_samples()[0] == door.hello(0)["samples"] + 1


def test_who_differs_later_is_refused_at_once(make_door):
    door = make_door()
    guests = greet(door, 0, {})
    door.gate.wait()
    guests[1].close()
    wait_until(lambda: door.gate.sessions[1].over)
    form = {**door.hello(1)["form"], **LIES[0]}
    assert says(str(door.client(1, form=form).hear()["refused"]), "the run's in: classes")


def test_a_client_names_the_fields_and_no_other_words_of_the_server():
    for differs, shown in ((["mean", "\x1b[31mpay"], "mean"), ("std", ""), (None, "")):
        with pytest.raises(RunError) as raised:
            _read_end(write_frame({"over": "refused", "differs": differs}))
        assert says(str(raised.value), f"in: {shown};")
