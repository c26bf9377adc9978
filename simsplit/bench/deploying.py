"""What a deployment costs: round trips over TLS, rounds over inline ones, bytes over the payload.

The server is this process and clients are processes of their own on the same machine, a thread
each. Frames, streams and checks are those of `serve` and `join`.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from simsplit.bench.relay import Relay
from simsplit.bench.rounds import Rounds, noise_for, scenario
from simsplit.bench.sides import interleaved
from simsplit.deploy.commands import refuse_lacking
from simsplit.deploy.elsewhere import elsewhere
from simsplit.deploy.gate import Gate
from simsplit.deploy.joining import join
from simsplit.deploy.keys import SERVER, client_name, keys_of, make_keys
from simsplit.deploy.session import Session
from simsplit.deploy.site import Site
from simsplit.deploy.sockets import Sockets, What
from simsplit.deploy.tensors import frame_of, read
from simsplit.deploy.terms import digest_of
from simsplit.errors import ProtocolError, RunFailedError
from simsplit.machine import pinned_threads
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, parse

Say = Callable[[str], None]
Figures = dict[str, object]
TOTAL, STEPS = 3200, 2
"""Samples of all clients, and each client's steps in a round that is timed."""
SIZES = {"4 KB": 2**12, "128 KB": 2**17, "1 MB": 2**20}
TRIP_MS = {"4 KB": 0.6, "128 KB": 1.1, "1 MB": 7.0}
OVER_PAYLOAD = {"1 MB": 1.003}
CLIENTS = 2
DIRECT, THROUGH_RELAY = range(CLIENTS)
"""Clients that echo: one is timed, and what the other is sent is counted on its way."""
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Case:
    """Rounds to compare: the fields of their scenario, and the ratio aimed at."""

    fields: Mapping[str, object] = field(default_factory=dict)
    target: float = 1.10
    faster: bool = False
    """Whether the ratio says how many times as fast deployed rounds are, not how slow."""


CASES = {
    "round robin, shared head, over inline": Case(),
    "splitfed_v1 in parallel, times as fast": Case(
        {"schedule": "parallel", "aggregation": {"kind": "splitfed_v1"}}, 1.50, faster=True
    ),
}


def deploying(
    device: str, quick: bool, say: Say, model: str = "resnet18", batch: int = 64
) -> Iterator[tuple[Table, Figures]]:
    """Three tables; on the CPU alone."""
    del device
    refuse_lacking()
    with pinned_threads(1):
        say("deploy: round trips, and bytes on the sockets ...")
        with _deployed(_scenario(model, batch, 1), echo=True) as gate:
            yield _trips(gate, 20 if quick else 200)
            yield _bytes(gate, 10 if quick else 50)
        yield _rounds(model, batch, 1 if quick else 7, say)


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


class _Counted(Gate):
    """A gate, and the relay before it."""

    relay: Relay


def _scenario(model: str, batch: int, rounds: int, **more: object) -> Scenario:
    schedule = {"kind": more.pop("schedule", "round_robin"), "rounds": rounds}
    return scenario(model, batch, {"count": CLIENTS}, schedule=schedule, threads=1, **more)


@contextmanager
def _deployed(given: Scenario, *, echo: bool = False) -> Iterator[_Counted]:
    """A block with all clients connected."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        make_keys(place / "keys", CLIENTS, 1)
        (place / "scenario.json").write_text(given.model_dump_json(), encoding="utf-8")
        waits = {"deadline_s": PATIENCE_S, "patience_s": PATIENCE_S}
        terms = digest_of(given, "rehearsal")
        gate = _Counted(given, terms, Sockets(place), **waits, say=_nothing)
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
    code = f"from simsplit.bench.deploying import main; main({folder!r}, {address!r}, {client}, "
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


def _trips(gate: Gate, count: int) -> tuple[Table, Figures]:
    """Milliseconds from a tensor here to the same tensor, sent back and checked."""
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for name, nbytes in SIZES.items():
        times = sorted(1000 * each for each in _exchanged(gate.sessions[DIRECT], nbytes, count))
        low, middle, high = statistics.quantiles(times, n=4)
        target = TRIP_MS[name]
        figures[name] = {"ms": middle, "low": low, "high": high, "target": target}
        rows.append((name, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", f"{target:g}"))
    columns = ("payload each way", "ms", "quartiles", "target")
    return Table(
        "a round trip over TLS, encoded and checked, 1 thread each", columns, rows
    ), figures


def _bytes(gate: _Counted, count: int) -> tuple[Table, Figures]:
    """What a relay counts, over the bytes of the tensors."""
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for name, nbytes in SIZES.items():
        before = gate.relay.up + gate.relay.down
        _exchanged(gate.sessions[THROUGH_RELAY], nbytes, count)
        crossed = (gate.relay.up + gate.relay.down - before) / (2 * count)
        target = OVER_PAYLOAD.get(name)
        figures[name] = {"bytes": crossed, "ratio": crossed / nbytes, "target": target}
        rows.append((name, f"{crossed:.0f}", f"{crossed / nbytes:.4f}", f"{target or ''}"))
    columns = ("payload", "bytes on the sockets", "ratio", "target")
    return Table("sockets' bytes over the payload, TLS and HTTP/2 included", columns, rows), figures


def _exchanged(session: Session, nbytes: int, count: int) -> list[float]:
    """So many round trips of a tensor; the seconds of each. It must come back as it was."""
    sent = torch.linspace(-1, 1, nbytes // 4)
    times = []
    for _ in range(count):
        started = time.perf_counter()
        _, (back,) = session.answer(session.ask(What("echo"), {}, [sent]))
        times.append(time.perf_counter() - started)
        if not back.equal(sent):
            raise ProtocolError("a tensor came back as another")
    return times


def _rounds(model: str, batch: int, pairs: int, say: Say) -> tuple[Table, Figures]:
    """Rounds of two deployed clients over the same rounds in one process."""
    rows: list[tuple[str, ...]] = []
    figures: Figures = {}
    for name, case in CASES.items():
        say(f"deploy: {name} ...")
        given = _scenario(model, batch, pairs + 1, **case.fields)
        inline = _Reported(given, noise_for(given, TOTAL), STEPS)
        with _deployed(given) as gate:
            data = elsewhere(given.data.source.kind, gate.form, gate.samples())
            deployed = _Reported(given, data, STEPS, gate)
            measured = interleaved(deployed.seconds, inline.seconds, pairs)
        _refuse_other(deployed, inline)
        measured = measured.inverted() if case.faster else measured
        figures[name] = vars(measured) | {"target": case.target}
        spread = f"{measured.low:.3f}-{measured.high:.3f}"
        seconds = (f"{measured.first_s:.2f}", f"{measured.other_s:.2f}")
        rows.append((name, f"{measured.ratio:.3f}", spread, *seconds, f"{case.target:.2f}"))
    columns = ("case", "ratio", "quartiles", "s per round", "inline, s", "target")
    title = f"two deployed clients against inline ({model}, batch {batch}, 1 thread each)"
    return Table(title, columns, rows), figures


class _Reported(Rounds):
    """Rounds as a run has them: entered anew, and over when every client has reported."""

    def before(self) -> None:
        self.enter()

    def after(self) -> None:
        self.parts.exchange.reports(self.parts.clients)


def _refuse_other(deployed: Rounds, inline: Rounds) -> None:
    """ProtocolError where the two have not trained alike, to the bit."""
    ours, theirs = (each.parts.server.learner.weights() for each in (deployed, inline))
    if not all(tensor.equal(theirs[name]) for name, tensor in ours.items()):
        raise ProtocolError("deployed clients came to other weights than inline ones")


def _nothing(text: str) -> None:
    del text
