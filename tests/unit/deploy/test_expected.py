"""What a party may send is held against its topology before it is believed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from texts import api_scenario

from simsplit.assembly.ownership import Ownership
from simsplit.deploy.expected import Expected
from simsplit.errors import ProtocolError
from simsplit.packets import Leg, Packet
from simsplit.scenario import Scenario

ROWS, LENGTH = 4, 6


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return api_scenario(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def expected(given: Scenario) -> Expected:
    info = given.prepared().info
    return Expected(Ownership(given, info, torch.device("cpu")))


def tokens(expected: Expected) -> Packet:
    ids = torch.randint(0, expected.vocabulary, (ROWS, LENGTH), dtype=torch.int32)
    return Packet(0, Leg.INPUTS, 1, 0, (ids, torch.ones(ROWS, LENGTH, dtype=torch.bool)))


def adapters(expected: Expected) -> Packet:
    return Packet(0, Leg.ADAPTERS, 1, 0, (torch.zeros(expected.adapters),))


def features(expected: Expected) -> Packet:
    width = expected.shapes[1]
    return Packet(0, Leg.FEATURES_GRAD, 1, 0, (torch.zeros(ROWS, *width),))


GOOD = (tokens, adapters, features)
BAD: dict[str, tuple[Callable[[Expected], Packet], Callable[[torch.Tensor], torch.Tensor]]] = {
    "tokens beyond the vocabulary": (tokens, lambda ids: ids + 10**6),
    "negative tokens": (tokens, lambda ids: ids - 10**6),
    "tokens as floats": (tokens, lambda ids: ids.float()),
    "tokens of one text as a row": (tokens, lambda ids: ids[0]),
    "no texts": (tokens, lambda ids: ids[:0]),
    "more texts than the batch": (tokens, lambda ids: ids.repeat(100, 1)),
    "adapters of another size": (adapters, lambda rows: rows[:, :-1]),
    "another number of sets": (adapters, lambda rows: rows.repeat(2, 1)),
    "adapters as integers": (adapters, lambda rows: rows.int()),
    "states of another width": (features, lambda rows: rows[..., :-1]),
    "states as integers": (features, lambda rows: rows.int()),
}


@pytest.mark.parametrize("good", GOOD)
def test_an_api_client_may_send_what_its_scenario_says(good, expected: Expected) -> None:
    expected.check(good(expected), by_client=True)


@pytest.mark.parametrize("case", BAD)
def test_an_api_client_may_send_nothing_else(case: str, expected: Expected) -> None:
    good, spoil = BAD[case]
    packet = good(expected)
    first, *rest = packet.tensors
    with pytest.raises(ProtocolError):
        expected.check(packet.with_tensors((spoil(first), *rest)), by_client=True)


def test_masks_are_held_against_their_tokens(expected: Expected) -> None:
    packet = tokens(expected)
    ids, real = packet.tensors
    for tensors in ((ids,), (ids, real[:, 1:]), (ids, real.int()), (ids, real, ids, real)):
        with pytest.raises(ProtocolError):
            expected.check(packet.with_tensors(tensors), by_client=True)


def test_no_leg_is_empty(expected: Expected) -> None:
    for good in GOOD:
        with pytest.raises(ProtocolError):
            expected.check(replace(good(expected), tensors=()), by_client=True)
