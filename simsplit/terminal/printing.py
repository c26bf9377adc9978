"""Tables are printed on stdout: fitted to the terminal's width, or in another format.

Pictures and report pages are written to files.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from simsplit.errors import RunError
from simsplit.report.canvas import save_figure, save_figure_as
from simsplit.report.comparison import compare
from simsplit.report.detections import compare_detections
from simsplit.report.grouping import Entry, load_entries, parse_baseline
from simsplit.report.numbers import (
    DETECTIONS,
    SETTINGS,
    list_shown_tables,
    refuse_table,
    write_csv,
)
from simsplit.report.overview import has_several_kinds, tabulate_overview
from simsplit.report.page import Subject, write_page
from simsplit.report.presentations import Compare, find_presentation, list_presentations
from simsplit.report.ranking import Ranking, describe_best, tabulate_ranking
from simsplit.report.run_figures import draw_figures
from simsplit.report.run_tables import show, write_heading
from simsplit.report.tables import Format, Table
from simsplit.results import SWEEP, Run
from simsplit.results.directory import replace
from simsplit.showing.saying import echo, make_console

REPORT = "report.html"


def print_run(run: Run, form: Format = "table") -> None:
    """Print a run's figures and bytes."""
    if form == "table":
        echo(write_heading(run))
    for table in show(run):
        print_table(table, form)


def print_attack(run: Run, name: str, form: Format) -> None:
    """Print the tables of an attack on a finished run, and the file with its picture."""
    presented = find_presentation(run.find_kind(name))
    for table in (presented.show_attack or presented.show)(run):
        if table.rows:
            print_table(table, form)
    if presented.draw_attack is not None:
        file = save_figure(presented.draw_attack(run, name), run.path / "figures" / f"{name}.png")
        echo(f"what was recovered, in a picture: {file}")


def print_pictures(runs: Mapping[str, Run], sweep: Path) -> None:
    """Save pictures of what attacks recovered in a sweep's cells, and print their files."""
    for _, each in list_presentations():
        if (file := each.save_pictures(runs, sweep)) is not None:
            echo(f"what was recovered, in a picture: {file}")


def print_comparison(
    paths: Sequence[Path],
    form: Format = "table",
    figure: str = "best_on_validation",
    baseline: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    *,
    table: str | None = None,
) -> None:
    """Print tables that compare runs and sweeps; `say` gets a line for each left-out cell.

    `table` selects one table. CSV always has only one, with raw numbers.
    """
    if table is not None:
        refuse_table(table)
    entries, _ = _load_entries(paths, say)
    if form == "csv" and table not in list_shown_tables():
        echo(write_csv(entries, figure, table or SETTINGS, parse_baseline(baseline, entries)))
        return
    made: dict[str, Callable[[], Sequence[Table | None]]] = {
        "overview": lambda: (
            [tabulate_overview(entries, figure)] if table or has_several_kinds(entries) else []
        ),
        SETTINGS: lambda: [compare(entries, figure, parse_baseline(baseline, entries))],
        DETECTIONS: lambda: [compare_detections(entries, figure)],
    }
    for kind, presented in list_presentations():
        of_kind = {kind: presented.compare}
        of_kind |= presented.compare_on_request if table else {}
        for name, make in of_kind.items():
            made[name] = partial(_compare, make, entries, baseline)
    tables = [each for name in ([table] if table else made) for each in made[name]() if each]
    if not tables:
        raise RunError(f"--table {table}: none of these runs has such figures")
    for each in tables:
        print_table(each, form)


def _compare(make: Compare, entries: Sequence[Entry], baseline: str | None) -> Sequence[Table]:
    return make(entries, parse_baseline(baseline, entries))


def _load_entries(
    paths: Sequence[Path], say: Callable[[str], None]
) -> tuple[list[Entry], list[str]]:
    """Load the entries to compare; `say` gets a line for each left-out cell."""
    entries, left_out = load_entries(paths)
    for line in left_out:
        say(line)
    return entries, left_out


def print_ranking(ranking: Ranking, form: Format = "table") -> None:
    """Print a ranking, on a terminal with the verdict first."""
    if form == "table":
        echo(describe_best(ranking))
    print_table(tabulate_ranking(ranking), form)


def print_table(table: Table, form: Format) -> None:
    """Print a table in the given format."""
    if form != "table":
        named = {"markdown": f"{table.heading}\n\n", "latex": f"% {table.heading}\n"}
        title = named.get(form, "")
        echo((title if table.title else "") + table.text(form) + "\n")
        return
    # NO_COLOR leaves rich its bold and italics, which are escape codes too
    console = make_console(force_terminal=False if os.environ.get("NO_COLOR") else None)
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        console.width = 140
    for part in table.split_to_fit(console.width):
        console.print(part.rich(console.width), highlight=False)


def plot_comparison(
    paths: Sequence[Path], pair: str, out: Path | None, figure: str, say: Callable[[str], None]
) -> Path:
    """Draw settings by two of their figures, and return the drawing's file."""
    from simsplit.report.grouping import name_rows
    from simsplit.report.scatter import scatter

    entries, _ = _load_entries(paths, say)
    drawn = scatter(entries, pair, figure, name_rows(entries))
    x, *ys = (name.strip() for name in pair.split(","))
    return save_figure_as(drawn, out or Path(f"{'-'.join(ys)}-by-{x}.png"))


def write_report(paths: Sequence[Path], out: Path | None, say: Callable[[str], None]) -> Path:
    """Write the page and return its file; `say` gets left-out cells and warnings."""
    target = out or (paths[0] / REPORT if len(paths) == 1 else Path(REPORT))
    if target.suffix not in (".html", ".htm"):
        raise RunError(f"--out takes a file that ends with .html, got '{target}'")
    page = write_page(Subject(*_load_entries(paths, say)))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, page.encode())
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from None
    for path in paths:
        if not (path / SWEEP).exists():
            for failure in draw_figures(Run.load(path)):
                say(f"warning: {path}: {failure}")
    return target
