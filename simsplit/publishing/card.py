"""A card is the page that a repository of results shows: command, tables and scenario."""

from pathlib import Path

from simsplit.errors import format_count
from simsplit.foreign import strip_controls
from simsplit.publishing.manifest import find_runs
from simsplit.publishing.places import is_folder
from simsplit.report.comparison import compare
from simsplit.report.grouping import load_entries
from simsplit.report.run_tables import show, write_heading
from simsplit.report.tables import Table
from simsplit.results import SCENARIO, SWEEP, Run, SweepDirectory

_HEAD = """---
tags:
- simsplit
- split-learning
---
"""


def write_card(folder: Path, repository: str) -> str:
    """Return the card of a copy that is about to be published."""
    runs = find_runs(folder)
    scenario = (runs[0] / SCENARIO).read_text(encoding="utf-8")
    where = "FOLDER" if is_folder(repository) else repository
    name, said, tables = _describe(folder, runs)
    lines = [
        f"# {name}",
        said,
        "Results of `simsplit`, a simulator of split learning. Weights are not published.",
        _fence(
            f"simsplit pull {where} published\n"
            f"simsplit {'compare' if (folder / SWEEP).exists() else 'show'} published\n"
            f"simsplit run published/{(runs[0] / SCENARIO).relative_to(folder)} --out again"
        ),
        *(_write(table) for table in tables if table.rows),
        "## The scenario" if len(runs) == 1 else f"## The scenario of {runs[0].name}",
        _fence(scenario.strip(), "yaml"),
    ]
    return _HEAD + strip_controls("\n\n".join(lines)) + "\n"


def _describe(folder: Path, runs: list[Path]) -> tuple[str, str, list[Table]]:
    """Return the card's title, its first sentence and its tables."""
    if not (folder / SWEEP).exists():
        run = Run.load(folder)
        return run.summary["name"], write_heading(run), show(run)
    sweep = SweepDirectory.load(folder)
    entries, _ = load_entries([folder])
    said = f"A sweep of {format_count(len(runs), 'run')}."
    return sweep.name, said, [compare(entries, "best_on_validation")]


def _write(table: Table) -> str:
    heading = f"{table.heading}\n\n" if table.title else ""
    return heading + table.markdown()


def _fence(text: str, language: str = "") -> str:
    """Fence a text with more ticks than it has in a row."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"
