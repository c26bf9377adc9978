"""A server admits none but its own clients, once each, with data of the expected form."""

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from door import GIVEN, Door, Guest, wait_until
from gists import says

from simsplit.deploy import keys
from simsplit.deploy.client_session import ClientLost
from simsplit.deploy.frames import write_frame
from simsplit.deploy.gate import METHOD, Gate
from simsplit.deploy.keys import Keys, make_keys
from simsplit.deploy.server_tables import LeftOutTable, SocketTable
from simsplit.deploy.terms import digest_terms
from simsplit.errors import RunError
from simsplit.parties.calls import Begin, CountSteps

pytestmark = pytest.mark.deploy


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.close()


def read_refusal(guest: Guest) -> str:
    return str(guest.hear()["refused"])


def test_a_closed_gate_keeps_no_thread(door: Door) -> None:
    """In a server that does one run after another they would add up, each with its own memory."""
    before = _list_client_threads()
    assert door.client(0).hear()["welcome"]
    door.close()
    wait_until(lambda: _list_client_threads() <= before)


def _list_client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("client_")}


class TestWhoMayComeIn:
    def test_a_client_with_its_certificate(self, door):
        assert door.client(0).hear()["welcome"]

    def test_nobody_without_one(self, door):
        nobody = grpc.ssl_channel_credentials(door.keys("client-0").authority)
        options = (("grpc.ssl_target_name_override", "server.simsplit"),)
        with grpc.secure_channel(door.address, nobody, options=options) as channel:
            frames = channel.stream_stream(METHOD)(iter([write_frame(door.hello(0))]))
            with pytest.raises(grpc.RpcError):
                next(frames)

    def test_nobody_without_tls(self, door):
        with grpc.insecure_channel(door.address) as channel:
            frames = channel.stream_stream(METHOD)(iter([write_frame(door.hello(0))]))
            with pytest.raises(grpc.RpcError):
                next(frames)

    def test_nobody_of_another_authority(self, door, tmp_path):
        make_keys(tmp_path / "others", 2, 1)
        theirs = door.keys("client-0", "others")
        ours = door.keys("client-0")
        guest = door.guest(Keys(ours.authority, theirs.certificate, theirs.key))
        guest.say(door.hello(0))
        with pytest.raises(grpc.RpcError):
            guest.hear()

    @pytest.mark.parametrize("days", [-30, 30], ids=["over", "not yet valid"])
    def test_nobody_whose_certificate_is_not_valid_now(self, door, days):
        """As where a clock is wrong by a month."""
        signer = load_pem_private_key((door.folder / "keys/ca/key.pem").read_bytes(), None)
        own = ec.generate_private_key(ec.SECP256R1())
        past = datetime.now(UTC) + timedelta(days=days)
        old = keys._issue_certificate("client-0", own, signer, (past, past + timedelta(days=1)))
        proof = Keys(door.keys("client-0").authority, old, keys._encode_private_key(own))
        guest = door.guest(proof)
        guest.say(door.hello(0))
        with pytest.raises(grpc.RpcError):
            guest.hear()
        with pytest.raises(RunError, match="not now"):
            keys.check_validity(proof)

    def test_no_client_passes_for_the_server(self, door):
        tables = SocketTable(door.folder), LeftOutTable(door.folder, resume=False)
        gate = Gate(GIVEN, "", *tables, deadline_s=5, patience_s=5, say=lambda _: None)
        port = gate.open("127.0.0.1:0", door.keys("client-1"))
        guest = Guest(f"127.0.0.1:{port}", door.keys("client-0"))
        with pytest.raises(grpc.RpcError):
            guest.hear()
        guest.close()
        gate.close("finished")

    def test_nobody_as_another_than_the_certificate_says(self, door):
        assert "certificate of client 0" in read_refusal(door.client(0, client=1))

    def test_no_client_that_the_run_has_not(self, door):
        guest = door.guest(door.keys("client-2"))
        guest.say({**door.hello(0), "client": 2})
        assert "no client" in read_refusal(guest)

    def test_nobody_twice(self, door):
        assert door.client(0).hear()["welcome"]
        assert "already" in read_refusal(door.client(0))

    def test_nobody_with_another_scenario(self, door):
        other = digest_terms(GIVEN.model_copy(update={"seed": 4}), "rehearsal")
        assert "another scenario" in read_refusal(door.client(0, terms=other))
        assert "another scenario" in read_refusal(
            door.client(0, terms=digest_terms(GIVEN, "private"))
        )

    def test_nobody_with_data_of_another_form(self, door):
        assert door.client(0).hear()["welcome"]
        form = {**door.hello(1)["form"], "sample": [3, 28, 28]}
        assert says(read_refusal(door.client(1, form=form)), "scenario ... sample")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"hello": 1},
            {"samples": -1},
            {"samples": True},
            {"facts": {"torch": ["x"]}},
            {"facts": {"torch": "x" * 10_000}},
            {"form": {"sample": [2**62]}},
            {"more": 1},
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_nobody_who_greets_in_another_way(self, door, wrong):
        assert read_refusal(door.client(0, **wrong))
        assert door.client(0).hear()["welcome"], "and the others are let in"

    @pytest.mark.parametrize(
        "other", [{"sample": [1]}, {"classes": ["a"]}, {"texts": True}], ids=str
    )
    def test_nobody_with_data_that_the_scenario_does_not_describe(self, door, other):
        for client in range(2):
            assert read_refusal(door.client(client, form={**door.hello(client)["form"], **other}))

    def test_nobody_with_data_that_the_model_cannot_read(self, door):
        """As where the scenario does not say what the data are, and all greet alike."""
        door.gate._info = None
        for client in range(2):
            form = {**door.hello(client)["form"], "sample": [1]}
            assert says(read_refusal(door.client(client, form=form)), "images")

    def test_silent_streams_of_one_client_take_nobodys_place(self, door):
        for _ in range(30):
            door.guest(door.keys("client-1"))
        assert door.client(0).hear()["welcome"]
        wait_until(lambda: "welcome" in door.client(1).hear())  # when its last silent one has come

    def test_noise_at_the_door_stops_nobody(self, door):
        with socket.create_connection(tuple(door.address.split(":"))) as some:
            some.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            assert door.client(0).hear()["welcome"]

    def test_who_says_nothing_stops_nobody(self, door):
        """Connections that are half open: below TLS, and within it without a greeting."""
        silent = [socket.create_connection(tuple(door.address.split(":"))) for _ in range(20)]
        door.guest(door.keys("client-1"))
        assert door.client(0).hear()["welcome"]
        for some in silent:
            some.close()


class TestWhatAClientAnswers:
    """What is wrong costs the client its place."""

    @pytest.fixture
    def inside(self, door: Door) -> Guest:
        guest = door.client(0)
        other = door.client(1)
        assert guest.hear()["welcome"] == other.hear()["welcome"]
        door.gate.wait()
        return guest

    def lose(self, door: Door, call: Any, reply: Any) -> str:
        pool = door.gate.pool(lambda _: None, [], torch.device("cpu"))
        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ClientLost) as lost:
            pool.ask(0, call)
        thread.join()
        assert door.gate.sessions[0].over
        assert 0 in door.gate._find_missing() or 0 in door.gate.left_out
        return str(lost.value)

    def packet(self, **other: Any) -> list[dict[str, Any]]:
        made = {"client": 0, "leg": "smashed", "round": 1, "step": 0, "names": []}
        made |= {"session": None, "position": 0, "tensors": 1, "sealed": None}
        return [{**made, **other}]

    def test_in_turn(self, door, inside):
        pool = door.gate.pool(lambda _: None, [], torch.device("cpu"))
        inside.say({"number": 1, "answer": 3})
        assert pool.ask(0, CountSteps("private")) == 3

    def test_the_same_twice(self, door, inside):
        pool = door.gate.pool(lambda _: None, [], torch.device("cpu"))
        for _ in range(2):
            inside.say({"number": 1, "answer": 3})
        assert pool.ask(0, CountSteps("private")) == 3
        assert "another request" in self.lose(door, CountSteps("private"), lambda: None)
        assert "expelled" in read_refusal(door.client(0)), "and does not come back"

    @pytest.mark.parametrize("answer", [-1, "7", None, True, [], 2**60])
    def test_of_another_type(self, door, inside, answer):
        send = lambda: inside.say({"number": 1, "answer": answer})  # noqa: E731
        assert "a number" in self.lose(door, CountSteps("private"), send)

    def test_nothing_in_time(self, door, inside):
        door.gate.sessions[0].deadline_s = 0.2
        assert "within 0.2 s" in self.lose(door, CountSteps("private"), lambda: None)
        assert door.client(0).hear()["welcome"], "and may come back"

    CUT = (16, 20, 12, 12)

    @pytest.mark.parametrize(
        ("tensor", "other", "why"),
        [
            (torch.full(CUT, torch.nan), {}, "finite"),
            (torch.zeros(16, 20, 12, 13), {}, "shape"),
            (torch.zeros(CUT, dtype=torch.int64), {}, "int64"),
            (torch.zeros(0, 20, 12, 12), {}, "shape"),
            (torch.zeros(600, 20, 12, 12), {}, "600 rows"),
            (torch.zeros(CUT), {"client": 1}, "another client"),
            (torch.zeros(CUT), {"round": 2}, "another client"),
            (torch.zeros(CUT), {"leg": "features_grad"}, "features_grad"),
            (torch.zeros(CUT), {"leg": "backdoor"}, "unknown leg"),
            (torch.zeros(CUT), {"tensors": 2}, "fewer tensors"),
            (torch.zeros(CUT), {"names": ["a", "b"]}, "names"),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, str | dict) else "",
    )
    def test_another_packet_than_the_step_has(self, door, inside, tensor, other, why):
        answer = {"number": 1, "answer": self.packet(**other)}
        send = lambda: inside.say(answer, tensor)  # noqa: E731
        assert why in self.lose(door, Begin(1), send)

    def test_more_than_any_frame_has(self, door, inside):
        answer = {"number": 1, "answer": self.packet()}
        values = torch.zeros(door.gate.most_bytes // 4 + 2**20)
        assert self.lose(door, Begin(1), lambda: inside.say(answer, values))

    def test_frames_without_end(self, door, inside):
        """They are not queued: 3,000 frames of 1 MiB took 3 GB."""
        session = door.gate.sessions[0]
        for _ in range(300):
            inside.say({}, torch.zeros(2**18))
        wait_until(lambda: session.over)
        assert session._arrived.qsize() < 10
        self.lose(door, CountSteps("private"), lambda: None)
        assert 0 in door.gate.left_out

    def test_text_of_an_exception_is_cut(self, door, inside):
        send = lambda: inside.say({"number": 1, "failed": "x" * 10_000})  # noqa: E731
        assert len(self.lose(door, CountSteps("private"), send)) < 200
