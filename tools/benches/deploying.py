"""This bench measures deployments: round trips over TLS, rounds against inline ones, and bytes.

The server is this process. Each client is its own process on the same machine, with one thread.
Frames, streams and checks are those of `serve` and `join`. A relay on the loopback address counts
all bytes that cross, including those of TLS and HTTP/2.
"""

import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from simsplit.bench.bench_scenarios import Rounds, random_images, scenario
from simsplit.bench.sides import BenchLines, Figures, Say, share_imports, time_in_turns
from simsplit.deploy.client_session import ClientSession
from simsplit.deploy.commands import require_deploy_packages
from simsplit.deploy.connection import join
from simsplit.deploy.data_form import make_remote_data
from simsplit.deploy.frames import read_frame, write_frame
from simsplit.deploy.gate import Gate
from simsplit.deploy.keys import SERVER, client_name, load_keys, make_keys
from simsplit.deploy.server_tables import FramePurpose, LeftOutTable, SocketTable
from simsplit.deploy.site import ClientSite
from simsplit.deploy.terms import digest_terms
from simsplit.errors import ProtocolError, RunFailedError
from simsplit.machine import pin_threads
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse

STEPS = 2
"""Steps of each client in a timed round."""
SIZES = {"4 KB": 2**12, "128 KB": 2**17, "1 MB": 2**20}
TRIP_MS = {"4 KB": 0.6, "128 KB": 1.1, "1 MB": 7.0}
OVER_PAYLOAD = {"1 MB": 1.003}
TOTAL = 3200
"""Samples of all clients."""
CLIENTS = 2
DIRECT, THROUGH_RELAY = range(CLIENTS)
"""Clients that echo: one is timed, and the relay counts the bytes of the other."""
PATIENCE_S = 300.0
PIECE = 2**16
"""Most bytes that the relay forwards at once."""


@dataclass(frozen=True)
class DeployCase:
    """Rounds to compare: the fields of their scenario, and the target ratio."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    target: float = 1.10
    faster: bool = False
    """Whether the ratio is the speed of deployed rounds over inline ones, not the time."""


CASES = {
    "round robin, shared head, over inline": DeployCase(),
    "splitfed_v1 in parallel, times as fast": DeployCase(
        {"schedule": "parallel", "aggregation": {"kind": "splitfed_v1"}}, 1.50, faster=True
    ),
}


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


class Door(Gate):
    """A gate with a relay before it."""

    relay: Relay


def measure_deployment(
    device: str, quick: bool, say: Say, model: str = "resnet18", batch: int = 64
) -> Iterator[tuple[Table, Figures]]:
    """Measure three tables, on the CPU only."""
    require_deploy_packages()
    with pin_threads(1):
        say("deploy: round trips, and bytes on the sockets ...")
        with open_deployment(_scenario(model, batch, 1), echo=True) as gate:
            yield _time_trips(gate, 20 if quick else 200)
            yield _compare_bytes(gate, 10 if quick else 50)
        yield _compare_rounds(model, batch, 1 if quick else 7, say)


def _scenario(model: str, batch: int, rounds: int, **more: Any) -> Scenario:
    kind = more.pop("schedule", "round_robin")
    schedule = {"kind": kind, "rounds": rounds, "local_steps": STEPS}
    return scenario(model, batch, {"count": CLIENTS}, schedule=schedule, threads=1, **more)


def _time_trips(gate: Gate, count: int) -> tuple[Table, Figures]:
    """Measure the milliseconds in which a tensor is sent, sent back and checked."""
    lines = BenchLines()
    for name, nbytes in SIZES.items():
        times = sorted(
            1000 * each for each in _time_exchanges(gate.sessions[DIRECT], nbytes, count)
        )
        low, middle, high = statistics.quantiles(times, n=4)
        target = TRIP_MS[name]
        figures = {"ms": middle, "low": low, "high": high, "target": target}
        row = (name, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", f"{target:g}")
        lines.add(name, figures, row)
    columns = ("payload each way", "ms", "quartiles", "target")
    return lines.table("a round trip over TLS, encoded and checked, 1 thread each", columns)


def _compare_bytes(gate: Door, count: int) -> tuple[Table, Figures]:
    """Compare what a relay counts with the bytes of the tensors."""
    lines = BenchLines()
    for name, nbytes in SIZES.items():
        before = gate.relay.up + gate.relay.down
        _time_exchanges(gate.sessions[THROUGH_RELAY], nbytes, count)
        crossed = (gate.relay.up + gate.relay.down - before) / (2 * count)
        target = OVER_PAYLOAD.get(name)
        figures = {"bytes": crossed, "ratio": crossed / nbytes, "target": target}
        row = (name, f"{crossed:.0f}", f"{crossed / nbytes:.4f}", f"{target or ''}")
        lines.add(name, figures, row)
    columns = ("payload", "bytes on the sockets", "ratio", "target")
    return lines.table("sockets' bytes over the payload, TLS and HTTP/2 included", columns)


def _time_exchanges(session: ClientSession, nbytes: int, count: int) -> list[float]:
    """Return the seconds of each of `count` round trips; the tensor must return unchanged."""
    sent = torch.linspace(-1, 1, nbytes // 4)
    times = []
    for _ in range(count):
        started = time.perf_counter()
        _, (back,) = session.answer(session.ask(FramePurpose("echo"), {}, [sent]))
        times.append(time.perf_counter() - started)
        if not back.equal(sent):
            raise ProtocolError("the echoed tensor differs from the tensor that was sent")
    return times


def _compare_rounds(model: str, batch: int, pairs: int, say: Say) -> tuple[Table, Figures]:
    """Compare rounds of two deployed clients with the same rounds in one process."""
    lines = BenchLines()
    for name, case in CASES.items():
        say(f"deploy: {name} ...")
        given = _scenario(model, batch, pairs + 1, **case.fields)
        inline = _ReportedRounds(given, random_images(given, TOTAL), STEPS)
        with open_deployment(given) as gate:
            data = make_remote_data(given.data.source.kind, gate.form, gate.count_samples())
            apart = _ReportedRounds(given, data, STEPS, gate)
            measured = time_in_turns(apart.seconds, inline.seconds, pairs)
        _refuse_other(apart, inline)
        measured = measured.invert() if case.faster else measured
        figures = vars(measured) | {"target": case.target}
        lines.add(name, figures, (name, *measured.cells, f"{case.target:.2f}"))
    columns = ("case", "ratio", "quartiles", "s per round", "inline, s", "target")
    title = f"two deployed clients against inline ({model}, batch {batch}, 1 thread each)"
    return lines.table(title, columns)


class _ReportedRounds(Rounds):
    """Rounds as in a run: each enters its phase, and its course collects the clients' reports."""

    def before(self) -> None:
        self.enter()


def _refuse_other(apart: Rounds, inline: Rounds) -> None:
    """Raise ProtocolError unless both sides have the same weights, bit for bit."""
    ours, theirs = (each.parts.server.learner.weights() for each in (apart, inline))
    if not all(tensor.equal(theirs[name]) for name, tensor in ours.items()):
        raise ProtocolError("the weights of deployed and inline training differ")


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
                gate.wait()  # by then they agree on the form of their data
                yield gate
            finally:
                gate.close("finished")
                for client in clients:
                    _end_client(client)


def _start_client(folder: str, address: str, client: int, echo: bool) -> "subprocess.Popen[bytes]":
    code = f"from benches.deploying import main; main({folder!r}, {address!r}, {client}, "
    return subprocess.Popen([sys.executable, "-c", f"{code}{echo})"], env=share_imports())


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
