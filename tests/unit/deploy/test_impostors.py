"""Servers of another authority, servers that end every stream, and keys that anyone may read."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import grpc
import pytest
from builders import TINY
from commands import Command
from gists import gist, says

from simsplit.deploy import connection
from simsplit.deploy.frames import write_frame
from simsplit.deploy.gate import METHOD, VERSION
from simsplit.deploy.keys import KEY, SEALING, SERVER, client_name, load_keys, make_keys
from simsplit.errors import RunError, RunFailedError
from simsplit.scenario import parse

TERMS = "of this run"


@contextmanager
def listen(folder, answer):
    """Open a server with the keys of a folder, which answers each stream by a function."""
    keys = load_keys(folder, SERVER)
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.stream_stream_rpc_method_handler(answer)
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    proof = grpc.ssl_server_credentials([(keys.key, keys.certificate)], keys.authority, True)
    port = server.add_secure_port("127.0.0.1:0", proof)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def make_site(**facts):
    return SimpleNamespace(
        enable_sealing=lambda keys: None,
        describe_itself=dict,
        start_stream=lambda: None,
        most_bytes=2**20,
        terms=TERMS,
        number=0,
        is_welcomed=False,
        **{"steps": 0, "rounds_kept": 0, **facts},
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    make_keys(folder / "ours", 1, 1)
    make_keys(folder / "theirs", 1, 1)
    return folder


def test_an_impostor_ends_join_at_once_in_a_sentence_alone(keys, tmp_path):
    (tmp_path / "a.yaml").write_text(parse({**TINY, "clients": {"count": 1}}).yaml())
    words = ["--client", "0", "--keys", keys / "ours", "--approve", "a.yaml", "--patience", "9999"]
    with listen(keys / "theirs", lambda frames, _: iter(())) as address:
        command = Command(tmp_path, program=("simsplit", "join", address))
        code, out, err = command.run(*map(str, words))
    assert (code, out) == (2, "")
    assert says(err, "certificate ... keys")
    assert [line for line in err.splitlines() if not line.startswith("error: ")] == []


def test_a_server_that_ends_each_stream_is_left_after_some(keys, monkeypatch):
    monkeypatch.setattr(connection, "PAUSE_S", 0)
    served = []

    def welcome(frames, _):
        served.append(next(frames))
        yield write_frame({"welcome": VERSION, "terms": TERMS})

    ours = load_keys(keys / "ours", client_name(0))
    with (
        listen(keys / "ours", welcome) as address,
        pytest.raises(RunFailedError, match=gist(f"{address} ... {connection.MOST_IDLE}")),
    ):
        connection.join(address, ours, make_site(), patience_s=9999, say=lambda text: None)
    assert len(served) == connection.MOST_IDLE


def test_a_server_under_which_the_client_gets_on_is_never_left(keys, monkeypatch):
    monkeypatch.setattr(connection, "PAUSE_S", 0)
    served, site = [], make_site()

    def welcome(frames, _):
        served.append(next(frames))
        yield write_frame({"welcome": VERSION, "terms": TERMS})
        # A batch in every third stream, and a checkpoint in others.
        site.steps += len(served) % 3 == 0
        site.rounds_kept += len(served) % 7 == 0
        if len(served) > 3 * connection.MOST_IDLE:
            yield write_frame({"over": "finished"})

    ours = load_keys(keys / "ours", client_name(0))
    with listen(keys / "ours", welcome) as address:
        over = connection.join(address, ours, site, patience_s=9999, say=lambda text: None)
    assert over == "finished"


def test_a_server_that_is_away_is_waited_for_as_before(keys, monkeypatch):
    monkeypatch.setattr(connection, "PAUSE_S", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ours = load_keys(keys / "ours", client_name(0))
    with pytest.raises(RunFailedError, match="within 0 s"):
        connection.join(address, ours, make_site(), patience_s=0, say=lambda text: None)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
@pytest.mark.parametrize("name", [KEY, SEALING])
def test_a_private_key_that_others_may_read_is_refused(name, mode, tmp_path):
    make_keys(tmp_path / "keys", 1, 1)
    file = tmp_path / "keys" / client_name(0) / name
    file.chmod(mode)
    with pytest.raises(RunError, match=gist(f"{file} ... {mode:04o} ... chmod 600 {file}")):
        load_keys(tmp_path / "keys", client_name(0))
    file.chmod(0o400)
    assert load_keys(tmp_path / "keys", client_name(0)).key


def test_a_key_of_another_user_has_modes_that_its_owner_chose(tmp_path, monkeypatch):
    make_keys(tmp_path / "keys", 1, 1)
    (tmp_path / "keys" / SERVER / KEY).chmod(0o644)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert load_keys(tmp_path / "keys", SERVER).key
