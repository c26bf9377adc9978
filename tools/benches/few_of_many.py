"""Crowds are compared with as few clients as take part in a round: a million, and on disk.

A million share one head; a hundred thousand have heads of their own, which rest on disk. Each run
has its own process, so that its peak of memory is its own. All are whole runs, as the command makes
them, of shipped scenarios: what is linear in the number of clients would show.
"""

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

from simsplit.bench.sides import BenchLines, Figures, Say, call_apart
from simsplit.report.tables import Table
from simsplit.scenario import load_scenario
from simsplit.whole_run import run

MILLION, ON_DISK = 1_000_000, 100_000
GROWTH = (10, 100, 1000, 10_000, 100_000)
GROWTH_ROUNDS = 4
GROWTH_STEPS = 4
"""Steps of a client in a round of the scenario `crowd`: 64 samples in batches of 16."""
MOST_BYTES = 4 * 2**30
"""The most memory that the run of a million may take."""


def compare_million(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure the scenario `million`, and a crowd of as few as take part in its rounds."""
    few, rounds = (100, 2) if quick else (1000, 4)
    what = "a million clients that share one head"
    return _compare("million", (few, MILLION), rounds, what, say)


def compare_on_disk(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure the scenario `hundred-thousand`, and a crowd of as few as take part in its rounds."""
    few, rounds = (20, 2) if quick else (100, 4)
    what = "a hundred thousand clients whose own heads rest on disk"
    return _compare("hundred-thousand", (few, ON_DISK), rounds, what, say)


def _compare(
    name: str, counts: tuple[int, int], rounds: int, what: str, say: Say
) -> tuple[Table, Figures]:
    """Measure a run of few clients, all of whom take part, and one of many, of whom as many do."""
    lines, few = BenchLines(), counts[0]
    first: dict[str, float] = {}
    for count in counts:
        say(f"scale: {count:,} clients, {few:,} a round ...")
        measured = call_apart(run_crowd, name, count, few, rounds)
        first = first or measured
        ratios = {
            key: measured[key] / first[key] for key in ("round", "whole", "processor", "peak")
        }
        row = (
            f"{count:,}",
            f"{measured['round']:.2f}",
            *(f"{ratios[key]:.2f}" for key in ("round", "processor")),
            f"{measured['whole']:.0f}",
            f"{ratios['whole']:.2f}",
            f"{measured['peak'] / 2**20:.0f}",
            f"{MOST_BYTES / 2**20:.0f}",
        )
        lines.add(f"{count} clients", {**measured, "ratios": ratios}, row)
    columns = (
        *("clients", "s per round", f"of {few:,}'s", "processor's", "s in all", "of it"),
        *("MiB at most", "target"),
    )
    title = f"{what}, {few:,} a round, {rounds} rounds, one thread"
    return lines.table(title, columns)


def compare_growth(quick: bool, say: Say) -> tuple[Table, Figures]:
    """Measure a client's step in rounds of up to a thousand of ever more clients, as they are
    stacked and one after another; all of them rest on disk.
    """
    lines, most = BenchLines(), 100 if quick else 1000
    for count in GROWTH[:4] if quick else GROWTH:
        selected = min(count, most)
        say(f"crowds: {count:,} clients on disk, {selected:,} a round ...")
        measured = {
            way: call_apart(run_crowd, "crowd", count, selected, GROWTH_ROUNDS, way)
            for way in (str(selected), "off")
        }
        stacked, loop = (
            1e6 * each["round"] / selected / GROWTH_STEPS for each in measured.values()
        )
        ratio = loop / stacked
        row = (
            f"{count:,}",
            f"{selected:,}",
            *(f"{stacked:.0f}", f"{loop:.0f}", f"{ratio:.2f}"),
            "3" if count == GROWTH[-1] else "",
            *(f"{each['peak'] / 2**20:.0f}" for each in measured.values()),
        )
        lines.add(f"{count} clients", {"stacked": stacked, "loop": loop, "ratio": ratio}, row)
    columns = (
        *("clients", "a round", "us a client and step, stacked", "loop", "loop/stacked", "target"),
        *("MiB at most, stacked", "loop"),
    )
    return lines.table("a crowd that rests on disk: scenario crowd, one thread", columns)


def run_crowd(name: str, count: int, selected: int, rounds: int, stack: str = "") -> None:
    """Run a shipped scenario; print seconds of a round and in all, and the peak of memory.

    `stack` is for a crowd that rests on disk: how many clients are one tensor, or off.
    """
    wall, processor = time.perf_counter(), time.process_time()
    changes: dict[str, object] = {
        "clients.count": count,
        "cohort.fraction": selected / count,
        "schedule.rounds": rounds,
        "evaluate.every": 0,
        "output.figures": False,
    }
    if stack:
        size = int(stack) if stack.isdigit() else stack
        changes["engine"] = {"kind": "inline", "stack": size, "rest": "disk"}
    with tempfile.TemporaryDirectory() as folder:
        made = run(load_scenario(name, changes), Path(folder) / "run")
        trained = made.timing["train_s"].iloc[1:]  # of the first round, round 0 was evaluated
    measured = {
        "round": statistics.median(trained),
        "whole": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(measured))  # noqa: T201 - the parent reads it
