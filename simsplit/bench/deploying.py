"""What a deployment costs: round trips over TLS, rounds over inline ones, bytes over the payload.

The server is this process and clients are processes of their own on the same machine, a thread
each (`loopback.py`).
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from simsplit.bench.loopback import CLIENTS, DIRECT, THROUGH_RELAY, TOTAL, Door, deployed
from simsplit.bench.rounds import Rounds, noise_for, scenario
from simsplit.bench.sides import interleaved
from simsplit.deploy.commands import refuse_lacking
from simsplit.deploy.elsewhere import elsewhere
from simsplit.deploy.gate import Gate
from simsplit.deploy.session import Session
from simsplit.deploy.sockets import What
from simsplit.errors import ProtocolError
from simsplit.machine import pinned_threads
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

Say = Callable[[str], None]
Figures = dict[str, object]
STEPS = 2
"""Each client's in a round that is timed."""
SIZES = {"4 KB": 2**12, "128 KB": 2**17, "1 MB": 2**20}
TRIP_MS = {"4 KB": 0.6, "128 KB": 1.1, "1 MB": 7.0}
OVER_PAYLOAD = {"1 MB": 1.003}


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
        with deployed(_scenario(model, batch, 1), echo=True) as gate:
            yield _trips(gate, 20 if quick else 200)
            yield _bytes(gate, 10 if quick else 50)
        yield _rounds(model, batch, 1 if quick else 7, say)


def _scenario(model: str, batch: int, rounds: int, **more: object) -> Scenario:
    schedule = {"kind": more.pop("schedule", "round_robin"), "rounds": rounds}
    return scenario(model, batch, {"count": CLIENTS}, schedule=schedule, threads=1, **more)


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


def _bytes(gate: Door, count: int) -> tuple[Table, Figures]:
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
        with deployed(given) as gate:
            data = elsewhere(given.data.source.kind, gate.form, gate.samples())
            apart = _Reported(given, data, STEPS, gate)
            measured = interleaved(apart.seconds, inline.seconds, pairs)
        _refuse_other(apart, inline)
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
        self.parts.exchange.collect_reports(self.parts.clients)


def _refuse_other(apart: Rounds, inline: Rounds) -> None:
    """ProtocolError where the two have not trained alike, to the bit."""
    ours, theirs = (each.parts.server.learner.weights() for each in (apart, inline))
    if not all(tensor.equal(theirs[name]) for name, tensor in ours.items()):
        raise ProtocolError("deployed clients came to other weights than inline ones")
