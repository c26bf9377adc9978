"""Finished runs become rows: their figures, and the facts of the run that made them."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simsplit.errors import RunError, format_list, suggest
from simsplit.evidence import code_sources
from simsplit.evidence.claims import Tier
from simsplit.evidence.digests import digest_of
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.row_code import Code, digest_parts, write_code
from simsplit.report.numbers import measure
from simsplit.results import SCENARIO, Run, SweepDirectory, read_summary
from simsplit.results.sweep_directory import SWEEP
from simsplit.scenario import load_scenario

_PLATFORM = re.compile(r"^(\w+).*?(x86_64|amd64|arm64|aarch64)", re.IGNORECASE)

_COMPUTE = ("torch", "numpy", "python")
"""What figures can depend on by its version; torch comes first, right after the card."""


def read_run(
    run: Run, cell: MeasuringCell, table: PaperTable, tier: Tier, commit: str | None = None
) -> list[Measurement]:
    """Return the rows of a finished run that measured a cell.

    `commit` is that of the package as it stands here, with which the run was just made; without
    one, the run names its own. Raise RunError where it lacks a figure of the claim, or names no
    known commit.
    """
    facts = run.environment
    code: Mapping[str, str] = {**cell.uses.code, **cell.uses.files}
    if commit is None:
        commit, code = _find_origin(run, cell)
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
        value = values[figure.is_][0] * figure.times
        if not math.isfinite(value):
            raise RunError(f"{table.full_name}: figure '{name}' of the run {run.path} is {value}")
        rows.append(
            Measurement(
                setting=cell.setting,
                seed=cell.seed,
                figure=name,
                value=round(value, 10),
                digest=digest,
                code=write_code(code),
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


def _find_origin(run: Run, cell: MeasuringCell) -> tuple[str, Code]:
    """Find the commit that a run names, and the code of the cell's parts there.

    A released version's code is that of the version; nobody knows what a commit's changes were.
    """
    facts, here = run.environment, code_sources.find_commit()
    sessions = [facts, *facts.get("resumed", ())]
    versions = {each.get("packages", {}).get("simsplit") for each in sessions}
    if not here and versions == {version("simsplit")}:
        return "", cell.uses.code
    # git calls a checkout dirty where nothing but measured rows differs
    commits = [str(each.get("commit") or "") for each in sessions]
    named = [here if each == here + code_sources.DIRTY else each for each in commits]
    codes = [_read_code(run, each, cell) for each in dict.fromkeys(named)]
    if any(code != codes[0] for code in codes):
        raise RunError(
            f"{run.path} was begun at the commit '{named[0]}' and resumed with other code; rows "
            "need a run of one code: measure again"
        )
    return named[0], codes[0]


def _read_code(run: Run, commit: str, cell: MeasuringCell) -> Code:
    """Return the code of a cell's parts at a commit that this checkout has."""
    dirty = commit.endswith(code_sources.DIRTY)
    if (graph := None if dirty else code_sources.read_commit(commit)) is None:
        raise RunError(
            f"{run.path} was made at the commit '{commit or 'unknown'}', and rows need one that "
            "this checkout has, without changes: commit them and measure again"
        )
    return digest_parts(cell.uses.parts, graph)


def write_command(cell: MeasuringCell, table: PaperTable, tier: Tier) -> str:
    """Return the command that measures a row again."""
    only = ",".join(f"{name}={value}" for name, value in cell.axes.items())
    words = [*table.command, *cell.options, "--tier", tier, "--seeds", str(cell.seed)]
    return shlex.join([*words, "--only", only] if only else words)


def find_runs(folder: Path) -> Iterator[tuple[str, Run]]:
    """Find the finished runs of a sweep or run directory, each with its scenario's digest."""
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
    """Describe a machine: system, processors, card, and versions of what computes.

    Torch can round otherwise with other vector instructions, and on another processor.
    """
    platform = str(facts["platform"])
    match = _PLATFORM.match(platform)
    system = " ".join(match.groups()) if match else platform.partition("-")[0]
    make = f" of {facts['processor']}" if facts.get("processor") else ""
    kind = f" with {facts['instructions']}" if facts.get("instructions") else ""
    words = [system, f"{facts['processors']} processors{make}{kind}"]
    words += [facts["gpu"]] if facts["gpu"] else []
    versions = {**facts["packages"], "python": facts.get("python")}
    known = [f"{name} {versions[name]}" for name in _COMPUTE if versions.get(name)]
    return ", ".join([*words, *known])
