"""Crowds of 10, 100 and 1,000 clients are compared at equal samples, and resting with live ones.

Each crowd runs in its own process, so that resident memory is that crowd's alone. On hosts, memory
is the sum over the driver and the hosts. Resting is measured in processor time, because it costs
copies in and out of seats. There, both crowds run alternate rounds in one process.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from simsplit.bench.bench_scenarios import Rounds, random_images, scenario
from simsplit.bench.sides import BenchLines, Figures, Say, call_apart, time_in_turns
from simsplit.engine.engine_config import HostsConfig
from simsplit.engine.ray_pool import hosts_for
from simsplit.machine import read_resident_bytes
from simsplit.parties.calls import OwnState
from simsplit.parties.seats import SEATS
from simsplit.report.tables import Table

HOSTS = 2
SAMPLES = 12_800
BATCH = 64
SMALL = 8
"""Samples in a batch of a crowd that rests."""
STEPS = 2
"""Steps of each client of a resting crowd in a round."""
ALL = sys.maxsize
"""As many seats as any crowd needs, so that no client rests."""


def crowds(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure 10, 100 and 1,000 clients with heads of their own, the same samples in all."""
    lines = BenchLines()
    few: dict[str, Any] = {}
    for clients in (10, 100, 1000):
        say(f"scale: {clients} clients on {HOSTS} hosts ...")
        measured = call_apart(train_on_hosts, clients, 1 if quick else 5)
        few = few or measured
        more_time, more_memory = (measured[key] / few[key] for key in ("seconds", "resident"))
        targets = ("1.10", "1.3") if clients == 100 else ("", "")
        row = (
            f"{clients}",
            f"{measured['seconds']:.2f}",
            f"{more_time:.2f}",
            targets[0],
            f"{measured['resident'] / 2**20:.0f}",
            f"{more_memory:.2f}",
            targets[1],
            f"{measured['owned'] / 2**20:.1f}",
        )
        lines.add(f"{clients} clients", measured, row)
    columns = (
        *("clients", "s per round", "of 10's", "target"),
        *("MiB resident", "of 10's", "target", "MiB that clients own"),
    )
    title = (
        f"many clients, {SAMPLES:,} samples in all, SimpleCNN, batch {BATCH}, parallel with own "
        f"heads, {HOSTS} hosts of 1 thread"
    )
    return lines.table(title, columns)


def train_on_hosts(clients: int, rounds: int) -> None:
    """Train; print a round's median seconds, all processes' bytes, and what clients own."""
    torch.set_num_threads(1)
    # batches of the same size whatever the crowd: 12.8 samples a client make none of 64
    batch = min(BATCH, SAMPLES // clients)
    given = scenario(
        "simplecnn", batch, {"count": clients, "heads": "per_client"}, schedule={"kind": "parallel"}
    )
    data = random_images(given, SAMPLES)
    with hosts_for(HostsConfig(), HOSTS, 2**29) as hosts:
        side = Rounds(given, data, SAMPLES // clients // batch, hosts)
        seconds = sorted(side.seconds() for _ in range(rounds + 1))
        gc.collect()
        resident = sum(held or 0 for held in (read_resident_bytes(), *hosts.resident_bytes()))
        states = side.parts.pool.ask_all(side.parts.clients, OwnState())
        owned = sum(t.nbytes for state in states.values() for t in state.values())
    measured = {"seconds": seconds[len(seconds) // 2], "resident": resident, "owned": owned}
    print(json.dumps(measured))  # noqa: T201 - the parent reads it


def measure_rest(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure what a crowd's clients take beyond what they own, and the time of resting."""
    clients = 300 if quick else 2000
    say(f"scale: {clients} clients at rest and live ...")
    rest, live, few = (
        call_apart(hold_crowd, n, seats)
        for n, seats in ((clients, SEATS), (clients, ALL), (100, ALL))
    )
    ratio = call_apart(compare_rest, clients, 2 if quick else 5)
    allowed = 1.1 * rest["owned"] + few["grown"]
    rows = [
        _format_row(f"{clients} at rest", rest, f"{allowed / 2**20:.0f}", ratio),
        _format_row(f"{clients} live", live, "", {}),
        _format_row("100 live", few, "", {}),
    ]
    columns = ("clients", "MiB grown", "target", "MiB owned", "CPU time of live ones'", "target")
    title = f"clients at rest, SimpleCNN with own heads, batch {SMALL}, {STEPS} steps a round"
    figures = {"at rest": rest | ratio, "live": live, "100 live": few, "allowed": allowed}
    return Table(title, columns, rows), figures


def _format_row(
    name: str, measured: dict[str, Any], most: str, ratio: dict[str, Any]
) -> tuple[str, ...]:
    grown, owned = (f"{measured[key] / 2**20:.0f}" for key in ("grown", "owned"))
    return (name, grown, most, owned, *((f"{ratio['ratio']:.3f}", "1.02") if ratio else ("", "")))


def _prepare_sides(clients: int) -> Callable[[int], Rounds]:
    """Return a function that builds one side with a number of seats, on shared data."""
    torch.set_num_threads(1)
    own = {"count": clients, "heads": "per_client"}
    given = scenario("simplecnn", SMALL, own, schedule={"kind": "per_client"})
    data = random_images(given, SMALL * STEPS * clients)
    return lambda seats: Rounds(given, data, STEPS, seats=seats)


def hold_crowd(clients: int, seats: int) -> None:
    """Train a crowd; print by how much the process grew, and what its clients own."""
    _prepare_sides(2)(ALL).seconds()  # libraries that the first step loads must not count
    sides = _prepare_sides(clients)
    given = read_resident_bytes() or 0
    side = sides(seats)
    side.seconds()
    gc.collect()
    grown = (read_resident_bytes() or 0) - given
    owned = sum(
        tensor.nbytes
        for client in side.parts.clients
        for tensor in side.parts.pool.ask(client, OwnState()).values()
    )
    print(json.dumps({"grown": grown, "owned": owned}))  # noqa: T201 - the parent reads it


def compare_rest(clients: int, pairs: int) -> None:
    """Print the ratio of processor times of a round: resting clients over live ones."""
    sides = _prepare_sides(clients)

    def build_block(side: Rounds) -> Callable[[], float]:
        def block() -> float:
            before = time.process_time()
            side.seconds()
            return time.process_time() - before

        return block

    measured = time_in_turns(build_block(sides(SEATS)), build_block(sides(ALL)), pairs)
    print(json.dumps(vars(measured)))  # noqa: T201 - the parent reads it
