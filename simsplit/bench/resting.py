"""A crowd at rest against the same crowd live: what each takes of memory and of the processor.

Each crowd is measured in a process of its own, for its resident memory's sake. Time is the
processor's, since that is what a copy in and out of a seat costs, and the two take turns at rounds
in one more process.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from simsplit.bench.rounds import Rounds, noise_for, scenario
from simsplit.bench.sides import interleaved
from simsplit.machine import resident_bytes
from simsplit.parties.calls import OwnState
from simsplit.parties.seats import SEATS
from simsplit.report.tables import Table

BATCH = 8
STEPS = 2
"""Of each client in a round."""
ALL = sys.maxsize
"""Seats for any crowd: nobody rests."""


def resting(quick: bool, say: Callable[[str], None]) -> tuple[Table, dict[str, object]]:
    """What a crowd's clients take beyond what they own, and what resting takes of time."""
    clients = 300 if quick else 2000
    say(f"scale: {clients} clients at rest and live ...")
    rest, live, few = (
        _measured("memory", n, seats) for n, seats in ((clients, SEATS), (clients, ALL), (100, ALL))
    )
    ratio = _measured("seconds", clients, 2 if quick else 5)
    allowed = 1.1 * rest["owned"] + few["grown"]
    rows = [
        _row(f"{clients} at rest", rest, f"{allowed / 2**20:.0f}", ratio),
        _row(f"{clients} live", live, "", {}),
        _row("100 live", few, "", {}),
    ]
    columns = ("clients", "MiB grown", "target", "MiB owned", "CPU time of live ones'", "target")
    title = f"clients at rest, SimpleCNN with own heads, batch {BATCH}, {STEPS} steps a round"
    figures = {"at rest": rest | ratio, "live": live, "100 live": few, "allowed": allowed}
    return Table(title, columns, rows), figures


def _row(name: str, found: dict[str, Any], most: str, ratio: dict[str, Any]) -> tuple[str, ...]:
    grown, owned = (f"{found[key] / 2**20:.0f}" for key in ("grown", "owned"))
    return (name, grown, most, owned, *((f"{ratio['ratio']:.3f}", "1.02") if ratio else ("", "")))


def _measured(what: str, clients: int, more: int) -> dict[str, Any]:
    """What one of the functions below prints, in a process of its own."""
    code = f"from simsplit.bench import resting; resting.{what}({clients}, {more})"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


def _sides(clients: int) -> Callable[[int], Rounds]:
    """Makes a side with so many seats, of data that are there already."""
    torch.set_num_threads(1)
    own = {"count": clients, "heads": "per_client"}
    given = scenario("simplecnn", BATCH, own, schedule={"kind": "per_client"})
    data = noise_for(given, BATCH * STEPS * clients)
    return lambda seats: Rounds(given, data, STEPS, seats=seats)


def memory(clients: int, seats: int) -> None:
    """Print by how much the process grew for clients that have trained, and what they own."""
    _sides(2)(ALL).seconds()  # what the first step loads is nobody's
    sides = _sides(clients)
    given = resident_bytes() or 0
    side = sides(seats)
    side.seconds()
    gc.collect()
    grown = (resident_bytes() or 0) - given
    owned = sum(
        tensor.nbytes
        for client in side.parts.clients
        for tensor in side.parts.pool.ask(client, OwnState()).values()
    )
    print(json.dumps({"grown": grown, "owned": owned}))  # noqa: T201 - the parent reads it


def seconds(clients: int, pairs: int) -> None:
    """Print what a round of resting clients takes of the processor for each second of live ones."""
    sides = _sides(clients)

    def spent(side: Rounds) -> Callable[[], float]:
        def block() -> float:
            before = time.process_time()
            side.seconds()
            return time.process_time() - before

        return block

    found = interleaved(spent(sides(SEATS)), spent(sides(ALL)), pairs)
    print(json.dumps(vars(found)))  # noqa: T201 - the parent reads it
