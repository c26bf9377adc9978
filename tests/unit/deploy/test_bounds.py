"""What a party may send is held against its topology before it is believed."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import TINY
from texts import OF_PARTIES, api_scenario, text_scenario

from simsplit.assembly.ownership import Ownership
from simsplit.deploy.bounds import Bounds
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods import Step
from simsplit.packets import Packet
from simsplit.parties.calls import Hear
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

ROWS, LENGTH = 4, 6


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return api_scenario(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def expected(given: Scenario) -> Bounds:
    return Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))


def tokens(expected: Bounds) -> Packet:
    ids = torch.randint(0, expected.packets.vocabulary, (ROWS, LENGTH), dtype=torch.int32)
    return Packet(0, Leg.INPUTS, 1, 0, (ids, torch.ones(ROWS, LENGTH, dtype=torch.bool)))


def adapters(expected: Bounds) -> Packet:
    return Packet(0, Leg.ADAPTERS, 1, 0, (torch.zeros(expected.packets.adapters),))


def features(expected: Bounds) -> Packet:
    width = expected.packets.get_shapes(0)[1]
    return Packet(0, Leg.FEATURES_GRAD, 1, 0, (torch.zeros(ROWS, *width),))


GOOD = (tokens, adapters, features)
BAD: dict[str, tuple[Callable[[Bounds], Packet], Callable[[torch.Tensor], torch.Tensor]]] = {
    "tokens beyond the vocabulary": (tokens, lambda ids: ids + 10**6),
    "negative tokens": (tokens, lambda ids: ids - 10**6),
    "tokens as floats": (tokens, lambda ids: ids.float()),
    "tokens of one text as a row": (tokens, lambda ids: ids[0]),
    "no texts": (tokens, lambda ids: ids[:0]),
    "more texts than the batch": (tokens, lambda ids: ids.repeat(100, 1)),
    "adapters of another size": (adapters, lambda rows: rows[:, :-1]),
    "another number of sets": (adapters, lambda rows: rows.repeat(2, 1)),
    "adapters as integers": (adapters, lambda rows: rows.int()),
    "states of another number of sets": (features, lambda rows: rows.repeat(1, 2, 1)),
    "states of another width": (features, lambda rows: rows[..., :-1]),
    "states as integers": (features, lambda rows: rows.int()),
}


@pytest.mark.parametrize("good", GOOD)
def test_an_api_client_may_send_what_its_scenario_says(good, expected: Bounds) -> None:
    expected.check(good(expected), by_client=True)


@pytest.mark.parametrize("case", BAD)
def test_an_api_client_may_send_nothing_else(case: str, expected: Bounds) -> None:
    good, spoil = BAD[case]
    packet = good(expected)
    first, *rest = packet.tensors
    with pytest.raises(ProtocolError):
        expected.check(packet.with_tensors((spoil(first), *rest)), by_client=True)


def test_masks_are_held_against_their_tokens(expected: Bounds) -> None:
    packet = tokens(expected)
    ids, real = packet.tensors
    for tensors in ((ids,), (ids, real[:, 1:]), (ids, real.int()), (ids, real, ids, real)):
        with pytest.raises(ProtocolError):
            expected.check(packet.with_tensors(tensors), by_client=True)


def test_texts_are_no_longer_than_the_scenarios(given: Scenario, expected: Bounds) -> None:
    packet, most = tokens(expected), given.data.source.length
    for length, fits in ((most, True), (most + 1, False)):
        longer = tuple(tensor[:, :1].expand(ROWS, length) for tensor in packet.tensors)
        with nullcontext() if fits else pytest.raises(ProtocolError):
            expected.check(packet.with_tensors(longer), by_client=True)


def test_no_leg_is_empty(expected: Bounds) -> None:
    for good in GOOD:
        with pytest.raises(ProtocolError):
            expected.check(replace(good(expected), tensors=()), by_client=True)


@pytest.fixture(scope="module")
def defended(tmp_path_factory: pytest.TempPathFactory) -> Bounds:
    """Two messages to a gradient, by a method that leaves the form of packets alone."""
    defence = {"model": {"adapters": 2}, "method": [{"kind": "p3eft", "messages": 2}]}
    given = api_scenario(tmp_path_factory.mktemp("defended"), **defence)
    return Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))


@pytest.mark.parametrize("leg", [Leg.FEATURES_GRAD, Leg.ADAPTERS_GRAD])
def test_as_many_messages_as_methods_make_of_a_gradient(leg: Leg, defended: Bounds) -> None:
    features = defended.packets.get_shapes(0)[1]
    shape = (ROWS, *features) if leg is Leg.FEATURES_GRAD else defended.packets.adapters
    message, other = torch.zeros(shape), torch.zeros(*shape[:-1], shape[-1] + 1)
    packet, by_client = Packet(0, leg, 1, 0, (message, message)), leg is Leg.FEATURES_GRAD
    defended.check(packet, by_client=by_client)
    for tensors in ((message,), (message,) * 3, (message, other), (other, message)):
        with pytest.raises(ProtocolError):
            defended.check(packet.with_tensors(tensors), by_client=by_client)


@pytest.mark.parametrize("leg", [Leg.ADAPTERS, Leg.FEATURES])
def test_one_message_of_what_is_no_gradient(leg: Leg, defended: Bounds) -> None:
    features = defended.packets.get_shapes(0)[1]
    shape = (ROWS, *features) if leg is Leg.FEATURES else defended.packets.adapters
    message, by_client = torch.zeros(shape), leg is Leg.ADAPTERS
    defended.check(Packet(0, leg, 1, 0, (message,)), by_client=by_client)
    for tensors in ((message, message), (message[..., 1:],)):
        with pytest.raises(ProtocolError):
            defended.check(Packet(0, leg, 1, 0, tensors), by_client=by_client)


def test_a_frame_has_room_for_adapters(tmp_path: Path) -> None:
    given = api_scenario(tmp_path, model={"lora": {"rank": 2048}})
    made = Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))
    assert made.most_bytes > adapters(made).nbytes > 2**22


REMEMBERS = """
from typing import Literal

from simsplit import CodecConfig, Method


class RemembersConfig(CodecConfig):
    kind: Literal["remembers"] = "remembers"

    def build(self, site):
        return Remembers()


class Remembers(Method):
    def pack(self, x, step):
        step.memo[self] = x.shape
        return (x,)

    def unpack(self, tensors, step):
        return tensors[0].view(step.memo[self])


METHODS = {"remembers": RemembersConfig}
"""


def test_a_plugins_method_that_unpacks_by_its_memory_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "remembers.py").write_text(REMEMBERS)
    given = parse(merge(TINY, {"method": [{"kind": "remembers"}]}), tmp_path / "remembers.py")
    made = Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))
    packet = Packet(0, Leg.SMASHED, 1, 0, (torch.zeros(ROWS, *made.packets.get_shapes(0)[0]),))
    made.check(packet, by_client=True)


@pytest.mark.parametrize("length", [1, 7, 32])
def test_packed_texts_are_as_long_as_their_length_says(length: int, tmp_path: Path) -> None:
    """Codes of a text have as many bytes as its tokens need: no byte more crosses unnoticed."""
    given = text_scenario(tmp_path, method=[{"kind": "quantise", "bits": 3}])
    bounds = Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))
    x = torch.ones(ROWS, length, bounds.packets.get_shapes(0)[0][-1])
    message = bounds.packets.stacks[0].pack(Leg.SMASHED, x, Step(0, 1, 0, 0))
    packet = Packet(0, Leg.SMASHED, 1, 0, message)
    bounds.check(packet, by_client=True)
    codes, *others = packet.tensors
    more = (torch.nn.functional.pad(codes, (0, count)) for count in (1, len(codes[0])))
    for wrong in (codes[:, :-1], codes.repeat(1, 40), *more):
        with pytest.raises(ProtocolError):
            bounds.check(packet.with_tensors((wrong, *others)), by_client=True)


def test_packets_have_the_shape_of_their_clients_cut() -> None:
    model = {"kind": "mlp", "widths": [16, 12, 10, 8], "head": 1, "tail": 1}
    own = {"count": 2, "heads": "per_client", "cut": [1, 3]}
    given = parse(merge(TINY, {"model": model, "clients": own}))
    bounds = Bounds(Ownership(given, given.prepare_data().info, torch.device("cpu")))
    for client, other, width in ((0, 1, 16), (1, 0, 10)):
        sent = Packet(client, Leg.SMASHED, 1, 0, (torch.zeros(ROWS, width),))
        bounds.check(sent, by_client=True)
        with pytest.raises(ProtocolError, match="shape"):
            bounds.check(replace(sent, client=other), by_client=True)


def of_parties(*methods: dict[str, object]) -> Bounds:
    given = merge(
        TINY,
        {
            "topology": "vertical",
            "data": {"partition": {"kind": "parts"}},
            "clients": {"count": 2, "heads": "per_client"},
            "model": {"kind": "mlp", "widths": [8, 8, 5]},
            "method": methods,
        },
    )
    scenario = parse(given)
    return Bounds(Ownership(scenario, scenario.prepare_data().info, torch.device("cpu")))


OWN_CHAINS = (
    {"kind": "lightsplit", "k": 3, "by": "party 0"},
    {"kind": "cast", "by": "party 1"},
)


@pytest.mark.parametrize(("party", "form"), [(0, (3, torch.float32)), (1, (8, torch.float16))])
def test_each_party_sends_what_its_own_methods_make(party: int, form: tuple) -> None:
    """Another party's form, or a plain one, costs the sender its place."""
    bounds = of_parties(*OWN_CHAINS)
    forms = [(3, torch.float32), (8, torch.float16), (8, torch.float32), (3, torch.float16)]
    for width, dtype in forms:
        for leg, by_client in ((Leg.SMASHED, True), (Leg.SMASHED_GRAD, False)):
            packet = Packet(party, leg, 1, 0, (torch.zeros(4, width, dtype=dtype),))
            fits = (width, dtype) == form
            with nullcontext() if fits else pytest.raises(ProtocolError):
                bounds.check(packet, by_client=by_client)


@pytest.mark.parametrize("party", [0, 1])
def test_a_party_sends_no_more_tokens_than_its_field_has(party: int, tmp_path: Path) -> None:
    scenario = text_scenario(tmp_path, **OF_PARTIES)
    info = scenario.prepare_data().info
    bounds = Bounds(Ownership(scenario, info, torch.device("cpu")))
    (longest,) = info.parts[party]
    width = bounds.packets.get_shapes(party)[0][1]
    for length in (longest, longest + 1):
        tensors = (torch.zeros(2, length, width), torch.ones(2, length, dtype=torch.bool))
        with nullcontext() if length == longest else pytest.raises(ProtocolError):
            bounds.check(Packet(party, Leg.SMASHED, 1, 0, tensors), by_client=True)


def test_each_party_hears_what_its_own_methods_announce() -> None:
    bounds = of_parties(*OWN_CHAINS)
    heard = Hear([(torch.tensor(1),)])
    bounds.check_announced(0, heard)
    with pytest.raises(ProtocolError):
        bounds.check_announced(1, heard)
    bounds.check_announced(1, Hear([()]))
