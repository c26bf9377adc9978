"""This bench measures what hosts, sweeps and many clients cost and save, as ratios.

Each table names its threads and processes. The serial trunk bounds the speed-up of a cohort with
one trunk (Amdahl). This bound is computed from the measured shares of head and trunk, and printed
beside the speed-up that was reached.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benches.crowds import crowds, measure_rest
from benches.few_of_many import compare_million, compare_on_disk
from benches.flower_messages import flower_messages
from simsplit.bench.bench_scenarios import Rounds, random_images, scenario
from simsplit.bench.sides import BenchLines, Figures, Ratio, Say, time_in_turns
from simsplit.engine.engine_config import HostsConfig
from simsplit.engine.pool import Answer, InlinePool
from simsplit.engine.ray_pool import hosts_for
from simsplit.legs import ClientId
from simsplit.parties.calls import Call
from simsplit.report.tables import Table
from simsplit.scenario import Scenario, Sweep, load_sweep
from simsplit.sweep import run_sweep

HOSTS = 2
CASE = "ResNet-18, batch 64"
STORE_BYTES = 2**30
SWEEP_CELLS = 8
SWEEP_FILE = """
name: bench
data: {{source: digits}}
clients: {{count: 10}}
schedule: {{rounds: {rounds}}}
train: {{batch_size: 32}}
evaluate: {{every: 0}}
checkpoint: {{every: 0}}
threads: 1
sweep: {{seed: [{seeds}]}}
"""


def scale(device: str, quick: bool, say: Say) -> Iterator[tuple[Table, Figures]]:
    """Measure all tables, on the CPU only."""
    yield _compare_round_robin(quick, say)
    yield _compare_cohort(quick, say)
    yield measure_sweep(quick, say)
    yield crowds(quick, say)
    yield measure_rest(quick, say)
    yield compare_million(quick, say)
    yield compare_on_disk(quick, say)
    yield flower_messages(quick, say)


def _compare_round_robin(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Compare Ray with inline where it gains least: clients take turns."""
    threads = torch.get_num_threads()
    lines = BenchLines()
    for name, clients in (
        ("shared head", {"count": 4}),
        ("own heads", {"count": 4, "heads": "per_client"}),
    ):
        say(f"scale: Ray against inline, round robin, {name} ...")
        given = scenario("resnet18", 64, clients)
        measured, _ = _compare_with_inline(given, threads, steps=2, pairs=2 if quick else 9)
        figures = vars(measured) | {"threads": threads, "target": 1.15}
        lines.add(name, figures, (name, *measured.cells, "1.15"))
    title = (
        f"Ray ({HOSTS} hosts) against inline, ResNet-18, batch 64, round robin, {threads} threads"
    )
    return lines.table(title, ("case", *_COLUMNS, "target"))


def _compare_cohort(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Compare Ray with inline where it gains most: a concurrent cohort, on one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    lines = BenchLines()
    own, v1 = {"count": 4, "heads": "per_client"}, {"kind": "splitfed_v1"}
    cases = {
        "one trunk, own heads": scenario("resnet18", 64, own, schedule="parallel"),
        "splitfed_v1, trunk copies": scenario(
            "resnet18", 64, {"count": 4}, schedule="parallel", aggregation=v1
        ),
    }
    for name, given in cases.items():
        say(f"scale: Ray against inline, a cohort at once, {name} ...")
        measured, share = _compare_with_inline(given, 1, steps=3, pairs=2 if quick else 7)
        faster = measured.invert()
        copies = given.aggregation.kind == "splitfed_v1"
        bound = HOSTS if copies else 1 / (1 - share + share / HOSTS)
        target = 1.6 if copies else 0.9 * bound
        cells = (f"{share:.2f}", f"{bound:.2f}", f"{target:.2f}")
        figures = vars(faster) | {"head_share": share, "bound": bound, "target": target}
        lines.add(name, figures, (name, *faster.cells, *cells))
    torch.set_num_threads(before)
    columns = ("case", "times as fast", *_COLUMNS[1:], "head's share", "bound", "target")
    title = f"a cohort of 4 on {HOSTS} hosts of 1 thread against inline on 1 thread, {CASE}"
    return lines.table(title, columns)


def _compare_with_inline(
    given: Scenario, threads: int, *, steps: int, pairs: int
) -> tuple[Ratio, float]:
    """Compare rounds on hosts and inline; return also the clients' share of an inline round."""
    data = random_images(given, 6400)
    with hosts_for(HostsConfig(threads=threads), HOSTS, STORE_BYTES) as hosts:
        inline, on_hosts = Rounds(given, data, steps), Rounds(given, data, steps, hosts)
        measured = time_in_turns(on_hosts.seconds, inline.seconds, pairs)
    return measured, _measure_client_share(inline)


def _measure_client_share(inline: Rounds) -> float:
    """Return the share of a round that clients compute, and could compute concurrently."""
    pool = inline.parts.pool
    assert isinstance(pool, InlinePool), "the side without hosts"
    timed = _TimedPool(pool.clients)
    timed.workshop = pool.workshop
    inline.parts.exchange.pool = timed
    whole = inline.seconds()
    return timed.spent_s / whole


class _TimedPool(InlinePool):
    """A pool that adds up the seconds of its clients' answers."""

    spent_s = 0.0

    def ask(self, client: ClientId, call: Call[Answer]) -> Answer:
        """Return one client's answer, and add the time that it takes."""
        started = time.perf_counter()
        answer = super().ask(client, call)
        self.spent_s += time.perf_counter() - started
        return answer

    def tell(self, client: ClientId, call: Call[object]) -> None:
        self.ask(client, call)


_COLUMNS = ("ratio", "quartiles", "s per round", "against")


def measure_sweep(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Time the whole sweep with one job and with two."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        seeds = ", ".join(map(str, range(2 if quick else SWEEP_CELLS)))
        file.write_text(SWEEP_FILE.format(rounds=1 if quick else 40, seeds=seeds), encoding="utf-8")
        sweep = load_sweep(file)
        seconds = {}
        for jobs in (1, 2):
            say(f"scale: a sweep of {len(sweep.cells)} cells, {jobs} at a time ...")
            seconds[jobs] = _time_sweep(sweep, Path(folder) / f"jobs-{jobs}", jobs)
    faster = seconds[1] / seconds[2]
    row = (f"{len(sweep.cells)}", f"{seconds[1]:.0f}", f"{seconds[2]:.0f}", f"{faster:.2f}", "1.8")
    columns = ("cells", "s, 1 job", "s, 2 jobs", "times as fast", "target")
    title = "a sweep, 2 jobs against 1, cells of 1 thread"
    return Table(title, columns, [row], "rrrrr"), {"seconds": seconds, "times_as_fast": faster}


def _time_sweep(sweep: Sweep, out: Path, jobs: int) -> float:
    started = time.perf_counter()
    result = run_sweep(sweep, out, jobs=jobs)
    assert not result.failed, result.why()
    return time.perf_counter() - started
