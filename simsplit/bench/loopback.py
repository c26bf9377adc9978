"""Deployed clients in processes of their own on this machine, a thread each, for the bench.

Frames, streams and checks are those of `serve` and `join`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from simsplit.bench.relay import Relay
from simsplit.bench.rounds import noise_for
from simsplit.deploy.gate import Gate
from simsplit.deploy.joining import join
from simsplit.deploy.keys import SERVER, client_name, keys_of, make_keys
from simsplit.deploy.site import Site
from simsplit.deploy.sockets import Sockets
from simsplit.deploy.tensors import frame_of, read
from simsplit.deploy.terms import digest_of
from simsplit.errors import RunFailedError
from simsplit.scenario import Scenario, parse

TOTAL = 3200
"""Samples of all clients."""
CLIENTS = 2
DIRECT, THROUGH_RELAY = range(CLIENTS)
"""Clients that echo: one is timed, and what the other is sent is counted on its way."""
PATIENCE_S = 300.0


class Echo(Site):
    """A client that sends back what it is sent, read and written as in training."""

    def answer(self, frame: bytes) -> bytes:
        header, tensors = read(frame, self.expected.most_bytes)
        return frame_of({"number": header["number"]}, tensors)


def main(folder: str, address: str, client: int, echo: bool) -> None:
    """One client, from its greeting to the end of the bench."""
    torch.set_num_threads(1)
    place = Path(folder)
    given = parse(json.loads((place / "scenario.json").read_text(encoding="utf-8")))
    kind = Echo if echo else Site
    site = kind(given, noise_for(given, TOTAL), client, place / client_name(client))
    keys = keys_of(place / "keys", client_name(client))
    join(address, keys, site, patience_s=PATIENCE_S, say=_nothing)


class Door(Gate):
    """A gate, and the relay before it."""

    relay: Relay


@contextmanager
def deployed(given: Scenario, *, echo: bool = False) -> Iterator[Door]:
    """A block with all clients connected."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        make_keys(place / "keys", CLIENTS, 1)
        (place / "scenario.json").write_text(given.model_dump_json(), encoding="utf-8")
        gate = Door(
            given,
            digest_of(given, "rehearsal"),
            Sockets(place),
            deadline_s=PATIENCE_S,
            patience_s=PATIENCE_S,
            say=_nothing,
        )
        port = gate.open("127.0.0.1:0", keys_of(place / "keys", SERVER))
        with Relay(port) as gate.relay:
            addresses = dict.fromkeys(range(CLIENTS), f"127.0.0.1:{port}")
            addresses |= {THROUGH_RELAY: gate.relay.address} if echo else {}
            clients = [_started(folder, addresses[n], n, echo) for n in addresses]
            try:
                _wait(gate, clients)
                yield gate
            finally:
                gate.close("finished")
                for client in clients:
                    _ended(client)


def _started(folder: str, address: str, client: int, echo: bool) -> "subprocess.Popen[bytes]":
    code = f"from simsplit.bench.loopback import main; main({folder!r}, {address!r}, {client}, "
    return subprocess.Popen([sys.executable, "-c", f"{code}{echo})"])


def _wait(gate: Gate, clients: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Until all are there; RunFailedError as soon as one has ended instead."""
    end = time.monotonic() + PATIENCE_S
    while len(gate.sessions) < len(clients):
        if time.monotonic() > end or any(client.poll() is not None for client in clients):
            raise RunFailedError("a client of the bench did not come; see above")
        time.sleep(0.02)


def _ended(client: "subprocess.Popen[bytes]") -> None:
    try:
        client.wait(10)
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()


def _nothing(text: str) -> None:
    del text
