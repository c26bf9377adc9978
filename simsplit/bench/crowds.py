"""Many clients: what 100 cost over 10 at equal samples on hosts, and a run with 1,000.

Each crowd is measured in a process of its own with hosts of its own, so that resident memory is
that crowd's alone; it is summed over the driver and its hosts.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from simsplit.bench.rounds import Rounds, noise_for, scenario
from simsplit.engine.config import HostsConfig
from simsplit.engine.ray_pool import hosts_for
from simsplit.machine import resident_bytes
from simsplit.parties.calls import OwnState
from simsplit.report.tables import Table

HOSTS = 2
SAMPLES = 12_800
BATCH = 64


def crowds(quick: bool, say: Callable[[str], None]) -> tuple[Table, dict[str, object]]:
    """10, 100 and 1,000 clients with heads of their own, the same samples in all."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    few: dict[str, Any] = {}
    for clients in (10, 100, 1000):
        say(f"scale: {clients} clients on {HOSTS} hosts ...")
        found = _measured(clients, 1 if quick else 5)
        few = few or found
        figures[f"{clients} clients"] = found
        more_time, more_memory = (found[key] / few[key] for key in ("seconds", "resident"))
        targets = ("1.10", "1.3") if clients == 100 else ("", "")
        rows.append(
            (
                f"{clients}",
                f"{found['seconds']:.2f}",
                f"{more_time:.2f}",
                targets[0],
                f"{found['resident'] / 2**20:.0f}",
                f"{more_memory:.2f}",
                targets[1],
                f"{found['owned'] / 2**20:.1f}",
            )
        )
    columns = (
        *("clients", "s per round", "of 10's", "target"),
        *("MiB resident", "of 10's", "target", "MiB that clients own"),
    )
    title = (
        f"many clients, {SAMPLES:,} samples in all, SimpleCNN, batch {BATCH}, parallel with own "
        f"heads, {HOSTS} hosts of 1 thread"
    )
    return Table(title, columns, rows), figures


def _measured(clients: int, rounds: int) -> dict[str, Any]:
    code = f"from simsplit.bench.crowds import main; main({clients}, {rounds})"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


def main(clients: int, rounds: int) -> None:
    """Print the median seconds of a round, resident bytes of all processes, and what is owned."""
    torch.set_num_threads(1)
    # batches of the same size whatever the crowd: 12.8 samples a client make none of 64
    batch = min(BATCH, SAMPLES // clients)
    given = scenario(
        "simplecnn", batch, {"count": clients, "heads": "per_client"}, schedule={"kind": "parallel"}
    )
    data = noise_for(given, SAMPLES)
    with hosts_for(HostsConfig(), HOSTS, 2**29) as hosts:
        side = Rounds(given, data, SAMPLES // clients // batch, hosts)
        seconds = sorted(side.seconds() for _ in range(rounds + 1))
        gc.collect()
        resident = sum(held or 0 for held in (resident_bytes(), *hosts.resident_bytes()))
        states = side.parts.pool.ask_all(side.parts.clients, OwnState())
        owned = sum(t.nbytes for state in states.values() for t in state.values())
    found = {"seconds": seconds[len(seconds) // 2], "resident": resident, "owned": owned}
    print(json.dumps(found))  # noqa: T201 - the parent reads it
