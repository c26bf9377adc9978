"""Finished runs become rows: their figures, and the facts of the run that made them."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, format_list, suggest
from simsplit.evidence.cells import MeasuringCell
from simsplit.evidence.claims import Tier
from simsplit.evidence.digests import digest_of
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.papers import PaperTable
from simsplit.report.numbers import measure
from simsplit.results import SCENARIO, Run, SweepDirectory, read_summary
from simsplit.results.sweep_directory import SWEEP
from simsplit.scenario import load_scenario

_PLATFORM = re.compile(r"^(\w+).*?(x86_64|amd64|arm64|aarch64)", re.IGNORECASE)


_DIRTY = "-dirty"


def find_clean_commit() -> str:
    """Return the working folder's commit if nothing but rows differs from it, else nothing."""
    words = ["git", "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)results"]
    commit = ["git", "rev-parse", "HEAD"]
    try:
        subprocess.run(words, capture_output=True, timeout=20, check=True)
        done = subprocess.run(commit, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def read_run(
    run: Run, cell: MeasuringCell, table: PaperTable, tier: Tier, clean: str = ""
) -> list[Measurement]:
    """Return the rows of a finished run that measured a cell.

    `clean` is a commit from which nothing but rows differs: git calls it dirty all the same.

    Raises:
        RunError: where the run lacks a figure of the claim.
    """
    facts = run.environment
    commit = str(facts["commit"] or "")
    commit = clean if commit == clean + _DIRTY else commit
    times = {table.claim.figures[name].at for name in cell.digests}
    measured = {at: measure([run], at) for at in times}
    rows = []
    for name, digest in cell.digests.items():
        figure = table.claim.figures[name]
        values = measured[figure.at]
        if figure.is_ not in values:
            hint = suggest(figure.is_, values) or f"; it has {format_list(values, 40)}"
            raise RunError(
                f"{table.full_name}: figure '{name}' is '{figure.is_}', which the run {run.path} "
                f"lacks{hint}"
            )
        rows.append(
            Measurement(
                setting=cell.setting,
                seed=cell.seed,
                figure=name,
                value=round(values[figure.is_][0] * figure.times, 10),
                digest=digest,
                version=str(facts["packages"]["simsplit"]),
                commit=commit,
                command=write_command(cell, table, tier),
                machine=_describe_machines(facts),
                threads=int(facts["threads"]),
                minutes=round(float(run.summary["seconds"]) / 60, 3),
                date=str(facts["started"]),
            )
        )
    return rows


def write_command(cell: MeasuringCell, table: PaperTable, tier: Tier) -> str:
    """Return the command that measures a row again."""
    only = ",".join(f"{name}={value}" for name, value in cell.axes.items())
    words = [*table.command, *cell.options, "--tier", tier, "--seeds", str(cell.seed)]
    return shlex.join([*words, "--only", only] if only else words)


def find_runs(folder: Path) -> Iterator[tuple[str, Run]]:
    """Find the finished runs of a sweep or run directory, each with its scenario's digest.

    Raises:
        RunError: where the folder holds no run.
    """
    if (folder / SWEEP).exists():
        paths = [folder / cell.name for cell in SweepDirectory.load(folder).cells]
    else:
        paths = [Run.load(folder).path]
    for path in paths:
        if read_summary(path).get("status") == "finished":
            yield digest_of(load_scenario(path / SCENARIO)), Run.load(path)


def _describe_machines(facts: Mapping[str, Any]) -> str:
    """Describe the machines on which a run was trained, without their names.

    It may have begun on one, and gone on on another, as on a node of a cluster.
    """
    # runs of before machines were noted have none with their resumptions
    later = [each for each in facts.get("resumed") or () if "platform" in each]
    return "; then ".join(dict.fromkeys(map(_describe_machine, [facts, *later])))


def _describe_machine(facts: Mapping[str, Any]) -> str:
    """Describe a machine: system, processors, card, torch.

    Torch can round otherwise with other vector instructions, so these are named too.
    """
    match = _PLATFORM.match(str(facts["platform"]))
    system = " ".join(match.groups()) if match else str(facts["platform"]).partition("-")[0]
    kind = f" with {facts['instructions']}" if facts.get("instructions") else ""
    words = [system, f"{facts['processors']} processors{kind}"]
    words += [facts["gpu"]] if facts["gpu"] else []
    return ", ".join([*words, f"torch {facts['packages']['torch']}"])
