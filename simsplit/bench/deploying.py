"""This bench measures deployments: round trips over TLS, rounds against inline ones, and bytes.

The server is this process. Each client is its own process on the same machine, with one thread
(`loopback.py`).
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from simsplit.bench.given import Rounds, random_images, scenario
from simsplit.bench.loopback import CLIENTS, DIRECT, THROUGH_RELAY, TOTAL, Door, open_deployment
from simsplit.bench.sides import BenchLines, Figures, Say, time_in_turns
from simsplit.deploy.client_session import ClientSession
from simsplit.deploy.commands import require_deploy_packages
from simsplit.deploy.gate import Gate
from simsplit.deploy.remote_data import make_remote_data
from simsplit.deploy.socket_table import FramePurpose
from simsplit.errors import ProtocolError
from simsplit.machine import pin_threads
from simsplit.report.tables import Table
from simsplit.scenario import Scenario

STEPS = 2
"""Steps of each client in a timed round."""
SIZES = {"4 KB": 2**12, "128 KB": 2**17, "1 MB": 2**20}
TRIP_MS = {"4 KB": 0.6, "128 KB": 1.1, "1 MB": 7.0}
OVER_PAYLOAD = {"1 MB": 1.003}


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


def _scenario(model: str, batch: int, rounds: int, **more: Any) -> Scenario:  # noqa: ANN401 - fields
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
