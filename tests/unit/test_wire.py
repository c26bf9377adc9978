"""Every packet is counted once, under its own key, and shown once to every tap."""

import torch

from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.wire import Wire


def packet(
    client: int = 0, leg: Leg = Leg.SMASHED, round_number: int = 1, values: int = 3
) -> Packet:
    return Packet(client, leg, round_number, 0, (torch.zeros(values), torch.zeros(1).half()))


def row(packets: int, nbytes: int, **fields: int | str) -> dict[str, int | str]:
    key: dict[str, int | str] = {"round": 1, "client": 0, "phase": "train", "leg": "smashed"}
    return key | fields | {"packets": packets, "bytes": nbytes}


def test_counts_are_kept_apart_by_round_client_phase_and_leg() -> None:
    wire = Wire()
    for each in (packet(), packet(client=1), packet(values=5), packet(round_number=2)):
        wire.carry(each)
    wire.carry(packet(leg=Leg.FEATURES))
    wire.moment.counted_phase = "warmup"
    wire.carry(packet())
    assert wire.drain() == [
        row(2, 14 + 22),  # three or five floats, and a half
        row(1, 14, client=1),
        row(1, 14, round=2),
        row(1, 14, leg="features"),
        row(1, 14, phase="warmup"),
    ]


def test_draining_empties_the_counts_but_not_the_totals() -> None:
    wire = Wire()
    wire.carry(packet())
    wire.drain()
    assert wire.drain() == []
    assert (wire.up, wire.down) == (14, 0)
    wire.carry(packet())
    assert wire.drain() == [row(1, 14)]
    assert wire.up == 28


def test_directions_by_leg_and_evaluations_in_neither() -> None:
    wire = Wire()
    legs = (Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD)
    for power, leg in enumerate((*legs, Leg.LABELS, Leg.HANDOVER, Leg.BROADCAST)):
        wire.carry(Packet(0, leg, 1, 0, (torch.zeros(2**power, dtype=torch.uint8),)))
    wire.moment.counted_phase = "evaluate"
    wire.carry(packet())
    rows = wire.drain()
    # smashed, features, features_grad, smashed_grad, labels, handover, broadcast
    assert wire.up == 1 + 4 + 16 + 32
    assert wire.down == 2 + 8 + 64
    assert rows[-1] == row(1, 14, phase="evaluate")


def test_a_hand_over_is_counted_once_and_known_to_whom_it_went() -> None:
    wire, elsewhere = Wire(), Wire()
    elsewhere.carry(packet(leg=Leg.HANDOVER), to=1)
    wire.carry(packet(leg=Leg.HANDOVER, values=5), to=1)
    wire.absorb(elsewhere.take())
    assert wire.drain() == [
        row(2, 36, leg="handover"),
        row(0, 0, leg="handover", client=1) | {"received_packets": 2, "received_bytes": 36},
    ]
    assert (wire.up, wire.down) == (36, 0)


class Tap:
    """A list as tap."""

    def __init__(self, seen: list[tuple[str, object]], name: str) -> None:
        self.seen, self.name = seen, name

    def observe(self, given: object) -> None:
        self.seen.append((self.name, given))


def test_taps_see_every_packet_once_in_order_and_it_is_delivered() -> None:
    seen: list[tuple[str, object]] = []
    wire = Wire([Tap(seen, "a"), Tap(seen, "b")])
    first, second = packet(), packet(client=1)
    assert wire.carry(first) is first
    wire.carry(second)
    wire.drain()
    assert [name for name, _ in seen] == ["a", "b", "a", "b"]
    assert [given is first for _, given in seen] == [True, True, False, False]
    assert all(isinstance(given, Packet) for _, given in seen)


def test_what_is_counted_is_the_payload_not_its_storage() -> None:
    whole = torch.zeros(100)
    assert Packet(0, Leg.SMASHED, 1, 0, (whole[:3], whole[:2].to(torch.int8))).nbytes == 12 + 2


def test_taps_and_counts_have_the_packet_that_an_active_server_sends() -> None:
    class Twice:
        def answer(self, packet: Packet) -> Packet:
            return Packet(0, packet.leg, 1, 0, (*packet.tensors, *packet.tensors))

    class Last:
        def observe(self, packet: Packet) -> None:
            self.seen = packet

    wire, last = Wire(), Last()
    wire.taps, wire.forger = [last], Twice()
    assert wire.carry(packet(leg=Leg.FEATURES)) is last.seen
    assert len(last.seen.tensors) == 4
    assert wire.drain() == [row(1, 2 * 14, leg="features")]
