"""Hand-overs between clients: a server that carries them reads and changes nothing unseen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import TINY
from direct import Sites
from hostile_ways import close_otherwise, complain_falsely, wrap_garbage

from simsplit.deploy.bounds import Bounds
from simsplit.deploy.client_session import ClientLost
from simsplit.deploy.frames import bytes_to_tensor
from simsplit.deploy.handovers import (
    HandoverJudge,
    Handovers,
    UnusableHandover,
)
from simsplit.deploy.keys import AUTHORITY, ROSTER, Keys, client_name, load_keys, make_keys
from simsplit.deploy.remote_pool import RemotePool
from simsplit.deploy.seals import Seals, UnopenedSeal
from simsplit.errors import ProtocolError, RunError, RunFailedError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.calls import Receive
from simsplit.scenario import parse
from simsplit.scenario.files import merge


class Anything(Bounds):
    """Takes any weights, so that tests can make small ones."""

    most_bytes = 2**24
    start_norm = 1.0

    def __init__(self) -> None:
        self.scenario = parse(TINY)

    def check(self, packet: Packet, sent: Packet | None = None, *, by_client: bool) -> None:
        """Raise ProtocolError for negative values."""
        if any(bool((tensor < 0).any()) for tensor in packet.tensors):
            raise ProtocolError("negative weights")

    def check_handed(self, packet: Packet, steps: int, power: object, margin: float) -> None:
        """Take any size, and any moments."""


EXPECTED = Anything()
WEIGHT = torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    make_keys(made / "ours", 3, 1)
    make_keys(made / "theirs", 3, 1)
    return made


@pytest.fixture
def three(folder: Path) -> list[Handovers]:
    return [of(folder / "ours", number) for number in range(3)]


def of(keys: Path, number: int, **other: Any) -> Handovers:
    seals = Seals(load_keys(keys, client_name(number)), 3)
    return Handovers(seals, number, **{"terms": "run", "strict": True, **other})


def packet(client: int, step: int = 1) -> Packet:
    return Packet(client, Leg.HANDOVER, 1, step, (WEIGHT + client,), ("w",))


class TestBetweenClients:
    def test_arrives_as_it_was(self, three):
        sealed = three[0].seal(packet(0), 1)
        for other in three[1:]:
            (got,) = other.open(sealed, 0, EXPECTED).tensors
            assert got.equal(WEIGHT)
            assert got.stride() == WEIGHT.stride()

    def test_shows_its_form_alone(self, three):
        sealed = three[0].seal(packet(0), 1)
        assert sealed.nbytes == packet(0).nbytes, "so that the wire's bytes stay what they are"
        assert not sealed.tensors[0].any()
        assert WEIGHT.contiguous().numpy().tobytes() not in sealed.sealed.numpy().tobytes()

    def test_is_for_the_others_alone(self, three):
        with pytest.raises(ProtocolError, match="validly sealed"):
            three[0].open(three[0].seal(packet(0), 1), 0, EXPECTED)


class TestAServer:
    def test_changes_no_byte_of_it(self, three):
        sealed = three[0].seal(packet(0), 1)
        for place in range(0, len(sealed.sealed), 7):
            changed = sealed.sealed.clone()
            changed[place] ^= 1
            with pytest.raises(ProtocolError, match="validly sealed"):
                three[1].open(replace(sealed, sealed=changed), 0, EXPECTED)

    def test_passes_it_off_as_no_other_clients_round_or_step(self, three):
        sealed = three[0].seal(packet(0), 1)
        for other in ({"client": 2}, {"round": 2}, {"step": 2}):
            with pytest.raises(ProtocolError, match=r"validly sealed|another round"):
                three[1].open(replace(sealed, **other), 0, EXPECTED)

    def test_makes_none_with_keys_of_its_own(self, three, folder):
        theirs = of(folder / "theirs", 0)
        with pytest.raises(ProtocolError, match="validly sealed"):
            three[1].open(theirs.seal(packet(0), 1), 0, EXPECTED)
        with pytest.raises(ProtocolError, match="not sealed"):
            three[1].open(packet(0), 0, EXPECTED)

    def test_puts_nobody_on_the_roster(self, folder):
        ours, theirs = (load_keys(folder / place, "client-1") for place in ("ours", "theirs"))
        mixed = Keys(ours.authority, ours.certificate, ours.key, ours.sealing, theirs.roster)
        with pytest.raises(RunError, match=f"{ROSTER} .*authority"):
            Seals(mixed, 3)
        assert (folder / "ours" / "client-1" / AUTHORITY).exists()

    def test_brings_none_of_another_run(self, three, folder):
        with pytest.raises(ProtocolError, match=r"a hand-over of another run$"):
            three[1].open(of(folder / "ours", 0, terms="other").seal(packet(0), 1), 0, EXPECTED)

    def test_brings_no_older_one(self, three):
        first, second, _ = three
        second.open(first.seal(packet(0), 1), 0, EXPECTED)
        old = second.seal(packet(1), 1)
        first.open(old, 1, EXPECTED)
        with pytest.raises(ProtocolError, match="all 2 steps"):
            first.open(old, 2, EXPECTED)

    def test_passes_nobody_by(self, three):
        """A client misses its own steps that are left out, when it next has its turn."""
        first, second, third = three
        second.open(first.seal(packet(0), 1), 0, EXPECTED)
        early = second.seal(packet(1), 1)
        third.open(early, 0, EXPECTED)
        third.seal(packet(2), 1)
        first.open(early, 1, EXPECTED)
        second.open(first.seal(packet(0, 2), 2), 1, EXPECTED)
        with pytest.raises(ProtocolError, match="all 1 steps"):
            third.open(second.seal(packet(1, 2), 2), 1, EXPECTED)

    def test_brings_none_of_an_earlier_run_of_the_same_scenario(self, three, folder):
        first, second, _ = three
        second.open(first.seal(packet(0), 1), 0, EXPECTED)
        again = of(folder / "ours", 0)
        again.seal(packet(0), 1)
        with pytest.raises(ProtocolError, match=r"steps .*another run"):
            again.open(second.seal(packet(1), 1), 1, EXPECTED)


class TestWhoseFaultItIs:
    """A receiver shows the server the key of what it was handed, and of nothing else."""

    @pytest.fixture
    def judge(self, folder: Path) -> HandoverJudge:
        return HandoverJudge(load_keys(folder / "ours", "server"), EXPECTED, "run", strict=True)

    def test_is_the_senders_where_it_sealed_no_weights(self, three, judge):
        bad = three[0].seal(packet(-9), 1)
        bad = replace(bad, client=0)
        with pytest.raises(UnusableHandover, match="client 0 handed over negative") as raised:
            three[1].open(bad, 0, EXPECTED)
        assert judge.is_proof(bad, raised.value.key)

    def test_is_the_senders_where_its_key_does_not_open_what_it_signed(self, three, judge):
        close_otherwise(three[0])
        bad = three[0].seal(packet(0), 1)
        judge.check_seal(bad)
        with pytest.raises(UnusableHandover) as raised:
            three[1].open(bad, 0, EXPECTED)
        assert judge.is_proof(bad, raised.value.key)
        assert not judge.is_proof(bad, bytes(32)), "not the key that the sender promised"

    def test_is_the_receivers_where_it_shows_nothing(self, three, judge):
        good = three[0].seal(packet(0), 1)
        _, _, key = three[1].seals.open(good.sealed.numpy().tobytes(), 0)
        assert not judge.is_proof(good, key), "the weights are good"
        assert not judge.is_proof(good, bytes(32)), "not the key that the sender promised"


class TestAComplaint:
    """Either the sender sealed no usable key for the receiver, or the receiver lies."""

    @pytest.fixture
    def judge(self, folder: Path) -> HandoverJudge:
        return HandoverJudge(load_keys(folder / "ours", "server"), EXPECTED, "run", strict=True)

    def complain(self, receiver: Handovers, sealed: Packet) -> bytes:
        with pytest.raises(UnopenedSeal) as raised:
            receiver.open(sealed, 0, EXPECTED)
        return raised.value.complaint

    def falsely(self, receiver: Handovers, sealed: Packet) -> bytes:
        blob = sealed.sealed.numpy().tobytes()
        complain_falsely(receiver)
        with pytest.raises(UnopenedSeal) as raised:
            receiver.seals.open(blob, sealed.client)
        return raised.value.complaint

    def disclose(self, sender: Handovers, receiver: int, sealed: Packet, complaint: bytes) -> bytes:
        return sender.disclose(receiver, [sealed.sealed, bytes_to_tensor(complaint)])

    def test_is_true_where_the_key_is_garbage(self, three, judge, folder):
        wrap_garbage(1)(three[0])
        sealed = three[0].seal(packet(0), 1)
        judge.check_seal(sealed)
        complaint = self.complain(three[1], sealed)
        assert judge.is_complaint(sealed, 1, complaint)
        restarted = of(folder / "ours", 0)
        once = self.disclose(restarted, 1, sealed, complaint)
        assert not judge.is_wrapped(sealed, 1, once)
        assert judge.is_wrapped(sealed, 2, once), "the other's key is good"
        three[2].open(sealed, 0, EXPECTED)

    def test_is_false_where_the_key_is_good(self, three, judge):
        sealed = three[0].seal(packet(0), 1)
        complaint = self.falsely(three[1], sealed)
        assert judge.is_complaint(sealed, 1, complaint)
        once = self.disclose(three[0], 1, sealed, complaint)
        assert judge.is_wrapped(sealed, 1, once)
        assert not judge.is_wrapped(sealed, 1, bytes(32)), "another secret proves nothing"
        assert not judge.is_wrapped(sealed, 1, b"")

    def test_is_none_that_another_has_signed(self, three, judge):
        sealed = three[0].seal(packet(0), 1)
        complaint = self.falsely(three[1], sealed)
        assert not judge.is_complaint(sealed, 2, complaint)
        assert not judge.is_complaint(three[0].seal(packet(0), 1), 1, complaint)
        assert not judge.is_complaint(sealed, 1, b"")

    def test_nothing_is_disclosed_to_the_server_alone(self, three):
        sealed, other = (three[0].seal(packet(0), 1) for _ in range(2))
        complaint = self.falsely(three[1], sealed)
        for sender, receiver, which, evidence in (
            (three[0], 1, other, complaint),
            (three[0], 2, sealed, complaint),
            (three[0], 0, sealed, complaint),
            (three[0], 9, sealed, complaint),
            (three[2], 1, sealed, complaint),
            (three[0], 1, sealed, bytes(70)),
            (three[0], 1, replace(sealed, sealed=sealed.sealed[:-1]), complaint),
        ):
            with pytest.raises(ProtocolError):
                self.disclose(sender, receiver, which, evidence)
        with pytest.raises(ProtocolError):
            three[0].disclose(1, [torch.ones(3), torch.ones(3)])

    def test_secrets_differ_from_seal_to_seal(self, three):
        seals = [three[0].seal(packet(0), 1) for _ in range(2)]
        one, other = (
            self.disclose(three[0], 1, sealed, self.falsely(three[1], sealed)) for sealed in seals
        )
        assert one != other


class TestWhatTheServerCarries:
    """It cannot open a seal, but it sees that no receiver could."""

    @pytest.fixture
    def judge(self, folder: Path) -> HandoverJudge:
        return HandoverJudge(load_keys(folder / "ours", "server"), EXPECTED, "run", strict=True)

    def test_what_is_sealed_for_this_round_and_step(self, three, judge):
        sealed = three[0].seal(packet(0), 1)
        judge.check_seal(sealed)
        three[1].open(sealed, 0, EXPECTED)
        judge.check_seal(three[1].seal(packet(1), 1))

    @pytest.mark.parametrize("other", [{"client": 1}, {"round": 2}, {"step": 2}], ids=str)
    def test_nothing_of_another_client_round_or_step(self, three, judge, other):
        with pytest.raises(ProtocolError):
            judge.check_seal(replace(three[0].seal(packet(0), 1), **other))

    @pytest.mark.parametrize("size", [0, 7, 8, 1000])
    def test_no_garbage(self, three, judge, size):
        garbage = torch.randint(0, 256, (size,), dtype=torch.uint8)
        with pytest.raises(ProtocolError):
            judge.check_seal(replace(three[0].seal(packet(0), 1), sealed=garbage))

    def test_no_changed_byte(self, three, judge):
        sealed = three[0].seal(packet(0), 1)
        for place in range(0, len(sealed.sealed), 97):
            changed = sealed.sealed.clone()
            changed[place] ^= 1
            with pytest.raises(ProtocolError):
                judge.check_seal(replace(sealed, sealed=changed))

    def test_nothing_of_another_run(self, folder, judge):
        with pytest.raises(ProtocolError):
            judge.check_seal(of(folder / "ours", 0, terms="other").seal(packet(0), 1))

    def test_nothing_without_a_key_for_each_receiver(self, three, judge):
        three[0].seals.roster.pop(2)
        with pytest.raises(ProtocolError):
            judge.check_seal(three[0].seal(packet(0), 1))

    def test_no_replay(self, three, judge):
        first, second, third = three
        old = first.seal(packet(0), 1)
        judge.check_seal(old)
        second.open(old, 0, EXPECTED)
        new = second.seal(packet(1), 1)
        judge.check_seal(new)
        third.open(new, 0, EXPECTED)
        with pytest.raises(ProtocolError):
            judge.check_seal(old)
        judge.check_seal(third.seal(packet(2), 1))

    def test_nothing_that_leaves_out_a_clients_steps(self, three, judge):
        first, second, _ = three
        judge.check_seal(first.seal(packet(0), 1))
        with pytest.raises(ProtocolError):
            judge.check_seal(second.seal(packet(1), 1))

    def test_from_where_a_round_began_if_it_is_trained_again(self, three, judge):
        first, second, _ = three
        judge.check_seal(first.seal(packet(0), 1))
        judge.keep(1)
        second.open(sealed := first.seal(packet(0), 1), 0, EXPECTED)
        judge.check_seal(sealed)
        judge.check_seal(second.seal(packet(1), 1))
        judge.return_to(1)
        judge.check_seal(first.seal(packet(0), 2))
        judge.return_to(0)
        judge.check_seal(of_new_run(second).seal(packet(1), 1))


def of_new_run(handovers: Handovers) -> Handovers:
    handovers.made = {}
    return handovers


def test_a_run_ends_where_its_server_brings_an_old_hand_over(tmp_path, monkeypatch):
    given = parse(merge(TINY, {"clients": {"count": 2}}))
    first: list[Receive] = []
    lines: list[str] = []
    send = RemotePool._send

    def replay(self: RemotePool, client: int, call: Any, **more: Any) -> int:
        if isinstance(call, Receive) and client == 1:
            first.append(call)
            call = first[0]
        try:
            return send(self, client, call, **more)
        except ClientLost as lost:
            lines.append(str(lost))
            raise

    monkeypatch.setattr(RemotePool, "_send", replay)
    with pytest.raises(RunFailedError):
        Sites(given, tmp_path).experiment().run(resume=False)
    assert "all 1 steps" in lines[0]


def test_keys_for_fewer_clients_than_there_are(folder):
    with pytest.raises(RunError, match=r"4 clients.* 3 \(client-3"):
        Seals(load_keys(folder / "ours", "client-0"), 4)
