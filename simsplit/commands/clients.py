"""`simsplit clients` shows a run client by client, and measures who helps and who hurts."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from simsplit.commands import options
from simsplit.errors import SimsplitError
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say


def clients(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Train without each client in turn.")
    ] = False,
    shapley: Annotated[
        int, typer.Option(min=0, metavar="N", help="Shapley values from N orders of clients.")
    ] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Train with these seeds; default: the run's own."),
    ] = None,
    from_: Annotated[
        int,
        typer.Option("--from", min=0, metavar="ROUND", help="Go on from this checkpoint."),
    ] = 0,
    score: Annotated[
        str | None, typer.Option(help="A column of rounds.csv; default: test accuracy.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Cut an order off this near to everybody's score."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw clients, into this file.")] = None,
    plugin: options.Plugin = None,
    format_: options.Format = "table",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Show a run client by client; measure who helps and who hurts."""
    from simsplit.results import Run
    from simsplit.results.read_tables import explain_misfits
    from simsplit.showing.run_output import count_work
    from simsplit.terminal.documents import document_clients
    from simsplit.terminal.printing import print_table

    asked = {"--seeds": seeds, "--from": from_ or None, "--score": score, "--tolerance": tolerance}
    if not (leave_out or shapley):
        _refuse_idle([name for name, given in asked.items() if given is not None])
    silent = quiet or as_json
    options.hush_if(silent)
    run = Run.load(run_dir)
    if leave_out or shapley:
        from simsplit.evidence.selecting import parse_seeds
        from simsplit.valuing.client_values import value_clients

        heed_termination()
        try:
            with count_work(make_console(stderr=True), "coalitions", quiet=silent) as progress:
                value_clients(
                    run,
                    leave_out=leave_out,
                    shapley=shapley,
                    seeds=() if seeds is None else parse_seeds(seeds),
                    from_round=from_,
                    score=score,
                    tolerance=tolerance,
                    plugins=options.load_plugins(plugin),
                    tell=(lambda line: None) if silent else say,
                    progress=progress,
                )
        except KeyboardInterrupt:
            end_interrupted(f"go on with: {shlex.join(['simsplit', *sys.argv[1:]])}")
        run = Run.load(run_dir)
    with explain_misfits([run_dir]):
        if as_json:
            options.print_json(document_clients(run))
        elif not quiet:
            from simsplit.report.client_tables import tabulate_clients

            for table in tabulate_clients(run):
                print_table(table, format_)
        if figure is not None:
            from simsplit.report.canvas import save_figure_as
            from simsplit.report.client_tables import draw_clients

            save_figure_as(draw_clients(run), figure)
            (say if as_json else echo)(f"figure: {figure}")


def _refuse_idle(names: list[str]) -> None:
    """Raise SimsplitError for options that say how to measure, where nothing is measured."""
    if names:
        words = " and ".join(names)
        raise SimsplitError(f"{words}: nothing is measured; add --leave-out or --shapley N")
