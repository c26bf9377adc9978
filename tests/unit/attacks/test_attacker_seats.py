"""An attack sees what passes its seat, and nothing else, however it is written."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from builders import TINY, run_to_end, scenario
from contracts.leaks import build_setting
from gists import says

from simsplit.attacks import ATTACKS, Attack, AttackConfig, Knowledge, Threat, When
from simsplit.attacks.attack import Done
from simsplit.attacks.threat import Role, Sees
from simsplit.errors import ProtocolError, ScenarioError
from simsplit.evidence.digests import digest_of
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.scenario.files import merge
from simsplit.scenario.loading import parse
from simsplit.wire import Viewpoint, Wire


class SpyConfig(AttackConfig):
    """Keeps all that it is shown, at whatever seat."""

    kind: Literal["spy"] = "spy"
    threat: ClassVar[Threat] = Threat((), (), when=When.TRAINING)

    def build(self, known: Knowledge) -> "Spy":
        return Spy(known)


class Spy(Attack):
    seen: ClassVar[list[Packet]] = []
    given: ClassVar[list[Packet]] = []

    def observe(self, packet: Packet) -> None:
        self.seen.append(packet)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        self.given.extend(targets)
        yield 1, 1

    @property
    def recovered(self) -> torch.Tensor:
        return torch.zeros(2, *self.known.image)


def spy(by: str, tmp_path: Path, **changes: Any) -> tuple[list[Packet], list[Packet]]:
    """Return what a spy sees of training and of targets, in a round of three clients."""
    Spy.seen.clear()
    Spy.given.clear()
    fields = {
        "data": {"train_samples": 48},
        "schedule": {"rounds": 1},
        "evaluate": {"every": 0},
        "targets": {"count": 2},
        "attacks": [{"kind": "spy", "by": by}],
    }
    given = parse(merge(merge(TINY, fields), changes), {"ATTACKS": {"spy": SpyConfig}})
    run_to_end(given, tmp_path / by.replace(" ", "-"))
    return list(Spy.seen), list(Spy.given)


def test_a_client_sees_its_own_packets_and_what_is_handed_to_it(tmp_path: Path) -> None:
    everything, targets = spy("server", tmp_path)
    assert {packet.client for packet in everything} == {0, 1, 2}
    assert {packet.client for packet in targets} == {0}
    own, none = spy("client 2", tmp_path)
    assert not none, "the targets are client 0's"
    handed = [packet for packet in own if packet.client != 2]
    assert {packet.leg for packet in handed} == {Leg.HANDOVER}
    assert {packet.client for packet in handed} == {1}, "what client 0 gets is none of its"
    assert [p.leg for p in own if p.client == 2 and p.leg is not Leg.HANDOVER] == [
        p.leg for p in everything if p.client == 2 and p.leg is not Leg.HANDOVER
    ]


def test_a_client_gets_broadcasts_and_no_hand_over_of_others(tmp_path: Path) -> None:
    averaged = {"aggregation": {"kind": "splitfed_v2"}}
    own, _ = spy("client 1", tmp_path, **averaged)
    assert {packet.client for packet in own} == {1}
    assert {Leg.BROADCAST, Leg.HANDOVER} <= {packet.leg for packet in own}


def test_the_wire_itself_filters() -> None:
    class Tap:
        def __init__(self) -> None:
            self.seen: list[Packet] = []

        def observe(self, packet: Packet) -> None:
            self.seen.append(packet)

    wire, one, all_of_it = Wire(), Tap(), Tap()
    wire.seated += [(Viewpoint(1), one), (Viewpoint(), all_of_it)]
    packets = [Packet(client, Leg.HANDOVER, 1, 0, ()) for client in (0, 1, 2)]
    for packet, to in zip(packets, (1, 2, 0), strict=True):
        wire.carry(packet, to=to)
    assert one.seen == packets[:2]
    assert all_of_it.seen == packets


def test_a_client_cannot_run_the_trunk() -> None:
    known = build_setting(vanilla=True).known
    assert known.trunk(torch.zeros(1, 1, 8, 8)).shape == (1, 64)
    here = known.move_to(1)
    assert here.tail is None
    with pytest.raises(ProtocolError):
        here.trunk(torch.zeros(1, 1, 8, 8))
    assert here.stack is not known.stack


def refuse(attack: dict[str, Any], **changes: Any) -> ScenarioError:
    with pytest.raises(ScenarioError) as error:
        scenario(attacks=[attack], **changes)
    return error.value


@pytest.mark.parametrize(
    ("by", "changes", "gist"),
    [
        ("client 3", {}, "between 0 and 2 ... 3"),
        ("client Bon", {"clients": {"names": ["Bonn", "Graz", "Oslo"]}}, "Bon ... Bonn"),
        ("client 1", {}, "smashed data ... client ... server"),
        ("client 0", {"targets": {"client": 1}}, "smashed data ... server"),
    ],
)
def test_a_seat_that_does_not_exist_or_shows_nothing_is_refused(
    by: str, changes: dict[str, Any], gist: str
) -> None:
    error = refuse({"kind": "unsplit", "by": by}, **changes)
    assert error.field == "attacks.0.by"
    assert says(error.reason, gist), error.reason


@pytest.mark.parametrize("by", ["Server", "client", "the server", "server 1"])
def test_a_misspelt_seat_is_refused(by: str) -> None:
    assert refuse({"kind": "unsplit", "by": by}).field == "attacks.0.by"


def test_the_victim_is_no_attacker() -> None:
    fields = {"attacks": [{"kind": "spy", "by": "client 0"}]}
    with pytest.raises(ScenarioError) as error:
        parse(merge(TINY, fields), {"ATTACKS": {"spy": SpyConfig}})
    assert error.value.field == "attacks.0.by"
    assert says(error.value.reason, "targets.client")


def test_the_seat_of_old_scenarios_is_the_server_and_moves_no_digest() -> None:
    plain = scenario(attacks=[{"kind": "unsplit"}])
    named = scenario(attacks=[{"kind": "unsplit", "by": "server"}])
    assert digest_of(plain) == digest_of(named)
    assert plain.attacks[0].by == "server"


def test_every_attack_can_be_made_from_its_own_seat() -> None:
    for kind, config in ATTACKS.items():
        assert config.threat.roles, kind
        assert (Role.SERVER in config.threat.roles) is (config().by == "server"), kind
    assert Threat((Sees.SMASHED,)).roles == (Role.SERVER,)
