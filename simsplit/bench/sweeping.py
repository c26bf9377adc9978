"""A sweep of eight cells is timed with two jobs and with one, including the workers' start."""

import tempfile
import time
from pathlib import Path

from simsplit.bench.sides import Figures, Say
from simsplit.report.tables import Table
from simsplit.scenario import Sweep, load_sweep
from simsplit.sweep import run_sweep

CELLS = 8
FILE = """
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


def measure_sweep(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Time the whole sweep with one job and with two."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        seeds = ", ".join(map(str, range(2 if quick else CELLS)))
        file.write_text(FILE.format(rounds=1 if quick else 40, seeds=seeds), encoding="utf-8")
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
