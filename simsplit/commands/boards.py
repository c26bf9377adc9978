"""`simsplit board` holds the defences of a track against its attacks, and a user's own too."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simsplit.commands import options
from simsplit.errors import SimsplitError
from simsplit.showing.saying import echo_prose, end_interrupted, heed_termination, say

if TYPE_CHECKING:
    from simsplit.boards.entries import Board
    from simsplit.evidence.reproducing import Reproduction
    from simsplit.report.tables import Format as Form


def complete_tracks(incomplete: str) -> list[str]:
    """Return the tracks that complete a name, for the shell."""
    from simsplit.boards.track import list_tracks

    return [name for name in list_tracks() if name.startswith(incomplete)]


def board(
    track: Annotated[
        str | None,
        typer.Argument(
            help="One track, such as images; default: a line for each.",
            autocompletion=complete_tracks,
        ),
    ] = None,
    *,
    tier: Annotated[
        Literal["quick", "small", "full"],
        typer.Option(help="quick: minutes, data that ship; small: hours, your data; full: a GPU."),
    ] = "quick",
    plugin: options.Plugin = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND|YAML",
            help="A defence of yours; several times for several strengths: '{kind: mine, k: 8}'.",
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND|YAML", help="An attack of yours, against every defence."),
    ] = None,
    seeds: options.Seeds = None,
    only: options.Only = None,
    jobs: options.Jobs = None,
    budget: options.Budget = None,
    data: options.DataFolder = None,
    device: options.Device = None,
    cluster: options.ClusterAddress = None,
    cpus: options.CellCpus = None,
    gpus: options.CellGpus = 0,
    show: Annotated[bool, typer.Option("--show", help="Show what is known; measure nothing.")] = (
        False
    ),
    dry: Annotated[bool, typer.Option("--dry", help="Say what it would take, and stop.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw leak against utility, into this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write the board as one page into this file.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(help="Also write your rows into this file, to hand them in.")
    ] = None,
    format_: options.Format = "table",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Test defences, yours among them, against attacks; rank them."""
    options.hush_if(quiet or as_json)
    if track is None:
        _list_tracks(as_json=as_json)
        return
    from simsplit.boards.entries import build_board
    from simsplit.boards.guests import Guest
    from simsplit.commands.evidence import parse_only
    from simsplit.commands.table_measuring import MeasuringOptions, measure_lacking, read_budget
    from simsplit.evidence.selecting import parse_seeds

    wanted = parse_seeds(seeds) if seeds is not None else None
    guest = Guest(
        _parse_parts("--method", method),
        _parse_parts("--attack", attack),
        options.load_plugins(plugin),
    )
    nodes, _ = options.read_cluster(cluster, cpus, gpus)
    build = partial(build_board, track, tier, guest, seeds=wanted)
    built, outcome = build(), None
    if not show:
        heed_termination()
        try:
            how = MeasuringOptions(
                jobs=jobs,
                minutes=read_budget(budget),
                data=data,
                device=device,
                cluster=nodes,
                alone=True,
                dry=dry,
                quiet=quiet or as_json,
            )
            outcome = measure_lacking([built.table], parse_only(only), how)
        except KeyboardInterrupt:
            end_interrupted(f"go on with: {shlex.join(['simsplit', *sys.argv[1:]])}")
        if dry:
            return
        built = build()
    _print(built, format_, quiet=quiet, as_json=as_json)
    if figure is not None:
        from simsplit.boards.board_drawing import draw_board
        from simsplit.report.canvas import save_figure

        save_figure(draw_board(built), figure)
        say(f"figure: {figure}")
    if html is not None:
        from simsplit.boards.page import write_board_page
        from simsplit.results.directory import make_folder, replace

        make_folder(html.parent)
        replace(html, write_board_page(built).encode())
        say(f"page: {html}")
    if card is not None:
        from simsplit.boards.cards import write_card

        write_card(built, guest, card)
        say(f"card: {card}")
    _report(outcome)


def _list_tracks(*, as_json: bool) -> None:
    from simsplit.boards.track import list_tracks, load_track
    from simsplit.report.tables import Table
    from simsplit.terminal.printing import print_table

    tracks = {name: load_track(name) for name in list_tracks()}
    if as_json:
        options.print_json(
            [{"track": n, "says": each.says, "tiers": [*each.tiers]} for n, each in tracks.items()]
        )
        return
    rows = [(name, each.says, ", ".join(each.tiers)) for name, each in tracks.items()]
    print_table(Table("", ("track", "what it asks", "tiers"), rows, "lll"), "table")


def _parse_parts(option: str, given: list[str] | None) -> list[dict[str, Any]]:
    """Return parts given as kinds or as YAML mappings with a kind."""
    import yaml

    parts = []
    for text in given or ():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = None
        part = {"kind": value} if isinstance(value, str) else value
        if not (isinstance(part, dict) and isinstance(part.get("kind"), str)):
            raise SimsplitError(f"{option} takes a kind, or YAML such as '{{kind: mine, k: 8}}'")
        parts.append(part)
    return parts


def _print(board: "Board", format_: "Form", *, quiet: bool, as_json: bool) -> None:
    from simsplit.boards import tabulating
    from simsplit.terminal.printing import print_table

    if as_json:
        options.print_json(tabulating.describe_board(board))
        return
    if quiet:
        return
    if format_ == "table":
        echo_prose(f"{board.track.title}, tier {board.tier}: {board.track.says}")
    for table in (tabulating.tabulate_standings(board), tabulating.tabulate_strengths(board)):
        print_table(table, format_)
        if format_ == "csv":
            return
    if format_ == "table":
        for line in tabulating.list_remarks(board):
            echo_prose(line)


def _report(outcome: "Reproduction | None") -> None:
    """Say what was not measured, and fail where cells failed."""
    from simsplit.commands.table_measuring import refuse_failed

    if outcome is None:
        return
    if outcome.out_of_time:
        say("the budget is used up; the same command goes on")
    refuse_failed(outcome)
