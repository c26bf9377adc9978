"""Tables on stdout: for a terminal as wide as it is, or in the form that was asked for."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from simsplit.errors import RunError
from simsplit.report.comparison import compare
from simsplit.report.detections import detections_of
from simsplit.report.labels import told_of_labels, told_of_labels_by
from simsplit.report.long_tables import AS_SHOWN, SETTINGS, csv_of, refuse_table
from simsplit.report.overview import overview_of, several_kinds
from simsplit.report.recoveries import recovered as recoveries_in
from simsplit.report.recoveries import recoveries_of, sentences
from simsplit.report.runs import heading, show
from simsplit.report.sessions import (
    dialogues,
    told_of_sessions,
    told_of_sessions_by,
    weighted_defences_by,
)
from simsplit.report.sweeps import baseline_of, entries_of
from simsplit.report.tables import Format, Table
from simsplit.results import Run


def print_run(run: Run, form: Format = "table") -> None:
    """A run's figures and bytes."""
    if form == "table":
        typer.echo(heading(run))
    for table in show(run):
        print_table(table, form)


def print_attack(run: Run, name: str, form: Format) -> None:
    """What an attack recovered of a finished run, and where its picture lies."""
    from simsplit.report.figures import drawn, read, recovered, saved

    if name in set(run.labels.get("attack", ())):
        print_table(told_of_labels(run), form)
        return
    if name in set(run.sessions.get("attack", ())):
        print_table(told_of_sessions(run), form)
        print_table(dialogues(run), form)
        return
    print_table(recoveries_in(run), form)
    file = run.path / "figures" / f"{name}.png"
    if "text" in run.recovered:
        print_table(sentences(run), form)
        saved(drawn(read(run)), file)
    else:
        saved(recovered(run.path / "attacks" / name), file)
    typer.echo(f"what was recovered, in a picture: {file}")


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

    `table` names the one table that is wanted. CSV holds one in any case, of raw numbers.
    """
    if table is not None:
        refuse_table(table)
    entries, left_out = entries_of(paths)
    for line in left_out:
        say(line)
    if form == "csv" and table not in AS_SHOWN:
        typer.echo(csv_of(entries, figure, table or SETTINGS, baseline_of(baseline, entries)))
        return
    made: dict[str, Callable[[], list[Table | None]]] = {
        "overview": lambda: (
            [overview_of(entries, figure)] if table or several_kinds(entries) else []
        ),
        SETTINGS: lambda: [compare(entries, figure, baseline_of(baseline, entries))],
        "detections": lambda: [detections_of(entries, figure)],
        "recovered": lambda: [*recoveries_of(entries)],
        "labels": lambda: [told_of_labels_by(entries)],
        "sessions": lambda: [told_of_sessions_by(entries, baseline_of(baseline, entries))],
    }
    if table == "dcs":
        made["dcs"] = lambda: [weighted_defences_by(entries, baseline_of(baseline, entries))]
    tables = [each for name in ([table] if table else made) for each in made[name]() if each]
    if not tables:
        raise RunError(f"--table {table}: none of these runs has such figures")
    for each in tables:
        print_table(each, form)


def print_table(table: Table, form: Format) -> None:
    """Print a table in the given format."""
    if form != "table":
        named = {"markdown": f"{table.heading}\n\n", "latex": f"% {table.heading}\n"}
        title = named.get(form, "")
        typer.echo((title if table.title else "") + table.text(form) + "\n")
        return
    from rich.console import Console

    # NO_COLOR leaves rich its bold and italics, which are escape codes too
    console = Console(force_terminal=False if os.environ.get("NO_COLOR") else None)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 140
    for part in table.fitting(console.width):
        console.print(part.rich(), highlight=False)


def plot_comparison(
    paths: Sequence[Path], pair: str, out: Path | None, figure: str, say: Callable[[str], None]
) -> Path:
    """Draw settings by two of their figures; where the drawing lies."""
    from simsplit.report.canvas import saved
    from simsplit.report.grouping import names_of
    from simsplit.report.scatter import scatter

    entries, left_out = entries_of(paths)
    for line in left_out:
        say(line)
    drawn = scatter(entries, pair, figure, names_of(entries))
    x, *ys = (name.strip() for name in pair.split(","))
    target = out or Path(f"{'-'.join(ys)}-by-{x}.png")
    try:
        return saved(drawn, target)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot write {target}: {error}") from None
