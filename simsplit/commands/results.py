"""`simsplit show`, `compare`, `report` and `export` read finished runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simsplit.commands import options
from simsplit.errors import SimsplitError, format_list
from simsplit.showing.saying import echo, say


def show_(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    format_: options.Format = "table",
    plugin: options.Unneeded = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: its figures, and its bytes by leg."""
    from simsplit.results import Run
    from simsplit.results.read_tables import explain_misfits
    from simsplit.terminal.documents import document_run
    from simsplit.terminal.printing import print_run

    options.try_plugins(plugin)
    with explain_misfits([run_dir]):
        if as_json:
            options.print_json(document_run(Run.load(run_dir)))
        else:
            print_run(Run.load(run_dir), format_)


def compare(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")
    ],
    *,
    format_: options.Format = "table",
    figure: Annotated[
        Literal["last", "best_on_validation", "best_on_test"],
        typer.Option(help="The round whose figures are shown."),
    ] = "best_on_validation",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE,...", help="Baseline cells, which the others are compared with."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Print one, such as overview, sessions or dcs; csv has one."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="X,Y",
            help="Draw settings by two figures, or some over a swept field: FIELD,FIGURE,...",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The drawing's file; default Y-by-X.png.")
    ] = None,
    plugin: options.Unneeded = None,
    as_json: options.Json = False,
) -> None:
    """Compare runs in tables or a drawing; seeds become means."""
    from simsplit.results.read_tables import explain_misfits
    from simsplit.terminal.documents import document_comparison
    from simsplit.terminal.printing import plot_comparison, print_comparison

    options.try_plugins(plugin)
    of_tables = {"--plot": plot, "--table": table, "--baseline": baseline}
    if as_json and (others := [name for name, value in of_tables.items() if value]):
        raise SimsplitError(
            f"--json prints all runs as they are, and so takes no {format_list(others)}; leave one "
            "of both out"
        )
    with explain_misfits(run_dirs):
        if as_json:
            options.print_json(document_comparison(run_dirs))
        elif plot is not None:
            echo(f"figure: {plot_comparison(run_dirs, plot, out, figure, say)}")
        else:
            print_comparison(run_dirs, format_, figure, baseline, say, table=table)


def rank(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="SWEEP...", help="Sweep and run directories.")
    ],
    *,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIGURE", help="Default: the task's main one on validation data."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the best setting as a scenario."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw all settings, an axis for each field."),
    ] = None,
    format_: options.Format = "table",
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Rank the settings of a search, the best first."""
    from simsplit.report.canvas import save_figure_as
    from simsplit.report.grouping import load_search
    from simsplit.report.parallel import draw_parallel
    from simsplit.report.ranking import rank_loaded, warn_of_test_data
    from simsplit.results.read_tables import explain_misfits
    from simsplit.terminal.documents import document_ranking
    from simsplit.terminal.printing import print_ranking

    options.try_plugins(plugin)
    with explain_misfits(run_dirs):
        ranking = rank_loaded(load_search(run_dirs), by=by)
        for line in filter(None, (*ranking.left_out, warn_of_test_data(ranking))):
            say(line)
        if as_json:
            options.print_json(document_ranking(ranking))
        else:
            print_ranking(ranking, format_)
        if write is not None:
            from simsplit.sweep.answers import write_best

            write_best(ranking, write, options.load_plugins(plugin))
            say(f"the best setting: {write}  (simsplit run {write})")
        if plot is not None:
            say(f"figure: {save_figure_as(draw_parallel(ranking), plot)}")


def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default report.html in the directory, of several here."),
    ] = None,
    plugin: options.Unneeded = None,
    as_json: options.Json = False,
) -> None:
    """Write one HTML page on runs and sweeps, with new figures."""
    from simsplit.results.read_tables import explain_misfits
    from simsplit.terminal.printing import write_report

    options.try_plugins(plugin)
    with explain_misfits(run_dirs):
        page = write_report(run_dirs, out, say)
        if as_json:
            options.print_json({"page": str(page), "runs": [str(path) for path in run_dirs]})
        else:
            echo(f"report: {page}")


def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default RUN/export.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Whose head and tail, where clients have their own.")
    ] = None,
    as_: Annotated[
        Literal["safetensors", "transformers"],
        typer.Option("--as", help="One file of weights, or a transformers folder."),
    ] = "safetensors",
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Write a run's trained network, for use elsewhere."""
    from simsplit.assembly.exporting import export as write
    from simsplit.assembly.exporting import export_passed
    from simsplit.assembly.trained import load_trained
    from simsplit.results import Run

    run, known = Run.load(run_dir), options.load_plugins(plugin)
    place = out or run_dir / "export"
    if as_ == "safetensors" and run.fields["model"]["kind"] == "given":
        number = None if client is None else run.client_names.find(client)
        files = export_passed(run, place, number, known)
    else:
        files = write(load_trained(run_dir, client, known), place, as_)
    if as_json:
        options.print_json({"form": as_, "files": list(map(str, files)), "client": client})
    else:
        echo("\n".join(map(str, files)))
    if as_ == "safetensors" and (methods := run.fields["method"]):
        names = ", ".join(str(method["kind"]) for method in methods)
        say(f"note: the file is without {names}, which it was trained with (simsplit.load_trained)")
