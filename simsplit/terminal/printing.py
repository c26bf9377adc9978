"""Tables on stdout: for a terminal as wide as it is, or in the form that was asked for."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from simsplit.report.comparison import compare
from simsplit.report.detections import detections_of
from simsplit.report.overview import overview_of, several_kinds
from simsplit.report.recoveries import recoveries_of
from simsplit.report.runs import heading, show
from simsplit.report.sweeps import baseline_of, entries_of
from simsplit.report.tables import Format, Table
from simsplit.results import Run


def print_run(run: Run, form: Format = "table") -> None:
    """A run's figures and bytes."""
    if form == "table":
        typer.echo(heading(run))
    for table in show(run):
        print_table(table, form)


def print_comparison(
    paths: Sequence[Path],
    form: Format = "table",
    figure: str = "best_on_validation",
    baseline: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    *,
    table: str | None = None,
) -> None:
    """Runs and sweeps beside each other; `say` is told of the cells that are left out.

    With `table: overview` that one alone; it comes first anyway where runs are on texts and others.
    """
    entries, left_out = entries_of(paths)
    for line in left_out:
        say(line)
    if table == "overview" or several_kinds(entries):
        print_table(overview_of(entries, figure), form)
    if table == "overview":
        return
    print_table(compare(entries, figure, baseline_of(baseline, entries)), form)
    if (found := detections_of(entries)) is not None:
        print_table(found, form)
    for each in recoveries_of(entries):
        if form == "csv":
            typer.echo(f"# {each.title}")  # they are alike but for their figure
        print_table(each, form)


def print_table(table: Table, form: Format) -> None:
    """Print a table in the given format."""
    if form != "table":
        title = {"markdown": f"{table.title}\n\n", "latex": f"% {table.title}\n"}.get(form, "")
        typer.echo((title if table.title else "") + table.text(form) + "\n")
        return
    from rich.console import Console

    # NO_COLOR leaves rich its bold and italics, which are escape codes too
    console = Console(force_terminal=False if os.environ.get("NO_COLOR") else None)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 140
    for part in table.fitting(console.width):
        console.print(part.rich(), highlight=False)
