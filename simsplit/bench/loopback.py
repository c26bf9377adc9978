"""The bench runs deployed clients as processes on this machine, with one thread each.

Frames, streams and checks are those of `serve` and `join`. A relay on the loopback address counts
all bytes that cross, including those of TLS and HTTP/2.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import torch

from simsplit.bench.given import random_images
from simsplit.deploy.connection import join
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.gate import Gate
from simsplit.deploy.keys import SERVER, client_name, load_keys, make_keys
from simsplit.deploy.left_out import LeftOutTable
from simsplit.deploy.site import ClientSite
from simsplit.deploy.socket_table import SocketTable
from simsplit.deploy.terms import digest_terms
from simsplit.errors import RunFailedError
from simsplit.scenario import Scenario, parse

TOTAL = 3200
"""Samples of all clients."""
CLIENTS = 2
DIRECT, THROUGH_RELAY = range(CLIENTS)
"""Clients that echo: one is timed, and the relay counts the bytes of the other."""
PATIENCE_S = 300.0
PIECE = 2**16
"""Most bytes that the relay forwards at once."""


class Relay:
    """A relay that forwards and counts every byte, to and from a port of this machine."""

    def __init__(self, port: int) -> None:
        self.up = 0
        """Bytes from clients; `down` counts those to clients."""
        self.down = 0
        self._port = port
        self._ends: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"

    def __enter__(self) -> Self:
        """Begin to take connections."""
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening, and cut the connections that are still open."""
        for end in (self._door, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _take(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                for one, other, way in ((near, far, "up"), (far, near, "down")):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(one, other, way), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, way: str) -> None:
        with suppress(OSError):  # either side has gone
            while piece := one.recv(PIECE):
                setattr(self, way, getattr(self, way) + len(piece))  # one thread a way writes it
                other.sendall(piece)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


class Echo(ClientSite):
    """A client that returns each tensor, after reading and writing it as in training."""

    def answer(self, frame: bytes) -> bytes:
        header, tensors = read_frame(frame, self.bounds.most_bytes)
        return write_frame({"number": header["number"]}, tensors)


def main(folder: str, address: str, client: int, echo: bool) -> None:
    """Run one client, from its greeting to the end of the bench."""
    torch.set_num_threads(1)
    place = Path(folder)
    given = parse(json.loads((place / "scenario.json").read_text(encoding="utf-8")))
    kind = Echo if echo else ClientSite
    site = kind(given, random_images(given, TOTAL), client, place / client_name(client))
    keys = load_keys(place / "keys", client_name(client))
    join(address, keys, site, patience_s=PATIENCE_S, say=_ignore)


class Door(Gate):
    """A gate with a relay before it."""

    relay: Relay


@contextmanager
def open_deployment(given: Scenario, *, echo: bool = False) -> Iterator[Door]:
    """Open a block in which all clients are connected."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        make_keys(place / "keys", CLIENTS, 1)
        (place / "scenario.json").write_text(given.model_dump_json(), encoding="utf-8")
        gate = Door(
            given,
            digest_terms(given, "rehearsal"),
            SocketTable(place),
            LeftOutTable(place, resume=False),
            deadline_s=PATIENCE_S,
            patience_s=PATIENCE_S,
            say=_ignore,
        )
        port = gate.open("127.0.0.1:0", load_keys(place / "keys", SERVER))
        with Relay(port) as gate.relay:
            addresses = dict.fromkeys(range(CLIENTS), f"127.0.0.1:{port}")
            addresses |= {THROUGH_RELAY: gate.relay.address} if echo else {}
            clients = [_start_client(folder, addresses[n], n, echo) for n in addresses]
            try:
                _wait(gate, clients)
                yield gate
            finally:
                gate.close("finished")
                for client in clients:
                    _end_client(client)


def _start_client(folder: str, address: str, client: int, echo: bool) -> "subprocess.Popen[bytes]":
    code = f"from simsplit.bench.loopback import main; main({folder!r}, {address!r}, {client}, "
    return subprocess.Popen([sys.executable, "-c", f"{code}{echo})"])


def _wait(gate: Gate, clients: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until all clients are connected; raise RunFailedError if one ends instead."""
    end = time.monotonic() + PATIENCE_S
    while len(gate.sessions) < len(clients):
        if time.monotonic() > end or any(client.poll() is not None for client in clients):
            raise RunFailedError("a client of the bench did not connect; see its output above")
        time.sleep(0.02)


def _end_client(client: "subprocess.Popen[bytes]") -> None:
    try:
        client.wait(10)
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()


def _ignore(text: str) -> None:
    del text
