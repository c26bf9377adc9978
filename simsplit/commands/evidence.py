"""`simsplit papers` shows the tables of papers beside ours, and `reproduce` measures them."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simsplit.commands import options, table_measuring
from simsplit.errors import SimsplitError
from simsplit.showing.saying import end_interrupted, heed_termination, make_console, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simsplit.evidence.evidence_tables import EvidenceTable
    from simsplit.evidence.presenting import JudgedTable
    from simsplit.evidence.refused_rows import RefusedRow
    from simsplit.evidence.reproducing import Reproduction

Tier = Annotated[
    Literal["small", "full"] | None,
    typer.Option(help="small: hours on two processors; full: the paper's size."),
]


def complete_table_names(incomplete: str) -> list[str]:
    """Return the names of tables that complete a name, for the shell."""
    from simsplit.evidence.papers import list_tables

    names = [table.full_name for table in list_tables()]
    return [name for name in names if name.startswith(incomplete)]


def papers(
    table: Annotated[
        str | None,
        typer.Argument(
            help="One table, such as lightsplit/table9; default: a line for each.",
            autocompletion=complete_table_names,
        ),
    ] = None,
    *,
    paper: Annotated[str | None, typer.Option(help="Only this paper's tables.")] = None,
    tier: Tier = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Which are stale, why, and what they cost again.")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only tables that lack measurements.")
    ] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="Open statements: what would settle them, and its price.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show papers' figures beside ours, with verdicts."""
    from simsplit.evidence.papers import find_table
    from simsplit.evidence.presenting import describe_built, describe_printed
    from simsplit.terminal.paper_tables import print_evidence, print_printed

    if table is None and open_:
        _list_open(paper, as_json=as_json)
        return
    if table is None:
        _list_tables(paper, stale=stale, missing=missing, as_json=as_json)
        return
    paper_table = find_table(table)
    if tier is None and not paper_table.tiers:
        if as_json:
            options.print_json(describe_printed(paper_table))
        else:
            print_printed(paper_table)
        return
    from simsplit.evidence.evidence_tables import build_table

    tiers = paper_table.tiers if tier is None else (paper_table.choose_tier(tier),)
    built = [build_table(paper_table, each) for each in tiers]
    measured = [each for each in built if each.fresh or each.stale] or built[:1]
    if as_json:
        options.print_json([describe_built(each) for each in measured])
        return
    for each in measured:
        print_evidence(each)


def _list_tables(paper: str | None, *, stale: bool, missing: bool, as_json: bool) -> None:
    from simsplit.evidence.evidence_tables import find_refused, judge_table, read_known_rows
    from simsplit.evidence.papers import list_tables
    from simsplit.terminal.paper_tables import print_overview, print_refused

    if stale:
        _list_stale(paper, as_json=as_json)
        return
    known = read_known_rows()
    tables = list_tables(paper)
    judged = [(table, *judge_table(table, known)) for table in tables]
    refused = find_refused(known, list_tables(), paper)
    if missing:
        judged = [each for each in judged if each[2] is not None and each[2].lacking]
    if as_json:
        options.print_json(_describe_tables(judged, refused))
        return
    if judged:
        print_overview(judged)
    else:
        say("no table lacks measurements")
    print_refused(refused)


def _list_open(paper: str | None, *, as_json: bool) -> None:
    """Show what would settle each open statement, the cheapest for its chance first."""
    from simsplit.evidence.evidence_tables import judge_table, read_known_rows
    from simsplit.evidence.papers import list_tables
    from simsplit.evidence.settling import find_prospects, sort_prospects
    from simsplit.evidence.verdicts import LOOKS, ClaimVerdict
    from simsplit.terminal.paper_tables import print_open

    known = read_known_rows()
    judged = [judge_table(table, known) for table in list_tables(paper)]
    found = sort_prospects(
        each
        for verdict, built in judged
        if built is not None and verdict is not ClaimVerdict.OUT_OF_REACH
        for each in find_prospects(built, LOOKS[-1])
    )
    if as_json:
        options.print_json([each.to_dict() for each in found])
    else:
        print_open(found)


def _list_stale(paper: str | None, *, as_json: bool) -> None:
    """Show which rows are stale, why, and what measuring them again costs."""
    from simsplit.evidence.staleness import find_stale, find_unsure
    from simsplit.terminal.paper_tables import print_stale

    found = [
        each
        for table in _build_measured(paper)
        for each in (*find_stale(table), *find_unsure(table))
    ]
    if as_json:
        options.print_json([each.to_dict() for each in found])
    else:
        print_stale(found)


def _build_measured(paper: str | None) -> "Iterator[EvidenceTable]":
    """Build all tables that have rows, of each tier, and the boards, which are no paper's."""
    from simsplit.boards.entries import build_board
    from simsplit.evidence.claims import TIERS
    from simsplit.evidence.evidence_tables import build_table, read_known_rows
    from simsplit.evidence.papers import list_tables
    from simsplit.scenario.shipped import BOARDS

    known = read_known_rows()
    for table in list_tables(paper):
        for own in table.tiers:
            if (table.paper, table.name, own) in known.by_file:
                yield build_table(table, own, known)
    if paper is None:
        boards = {(name, tier) for folder, name, tier in known.by_file if folder == BOARDS}
        for name in sorted({name for name, _ in boards}):
            for of_board in TIERS:
                if (name, of_board) in boards:
                    yield build_board(name, of_board, known=known).table


def _describe_tables(
    judged: "Sequence[JudgedTable]", refused: "Mapping[str, Sequence[RefusedRow]]"
) -> "list[dict[str, Any]]":
    """Describe the listed tables, and each file of a table that there is not."""
    from simsplit.evidence.presenting import describe_judged
    from simsplit.evidence.refused_rows import describe_refused

    described, of_tables = [], set()
    for table, verdict, built in judged:
        files = [f"{table.full_name}.{tier}" for tier in table.tiers]
        own = [row for file in files for row in refused.get(file, ())]
        described.append(describe_judged(table, verdict, built, own))
        of_tables.update(files)
    others = {file: rows for file, rows in refused.items() if file not in of_tables}
    return described + [
        {"table": file, "verdict": None, "refused": describe_refused(rows)}
        for file, rows in others.items()
    ]


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="The table, such as lightsplit/table9; none with --missing: all tables.",
            autocompletion=complete_table_names,
        ),
    ] = None,
    *,
    tier: Tier = None,
    seeds: options.Seeds = None,
    only: options.Only = None,
    jobs: options.Jobs = None,
    budget: options.Budget = None,
    settle: Annotated[
        bool, typer.Option("--settle", help="More seeds, as open statements need them to settle.")
    ] = False,
    most: Annotated[
        int, typer.Option(min=3, max=10, help="Seeds at most, with --settle: 3, 5, 7 or 10.")
    ] = 10,
    missing: Annotated[
        bool, typer.Option("--missing", help="Of all tables what is missing, cheap cells first.")
    ] = False,
    check: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Measure a share of the known cells again."),
    ] = None,
    lot: Annotated[
        int | None, typer.Option(help="Number that draws the cells of --check; default: any.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Take rows from a finished sweep of the same scenarios."),
    ] = None,
    data: options.DataFolder = None,
    device: options.Device = None,
    cluster: options.ClusterAddress = None,
    cpus: options.CellCpus = None,
    gpus: options.CellGpus = 0,
    dry: Annotated[bool, typer.Option("--dry", help="Say what it would take, and stop.")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure what papers' tables lack, into ./results."""
    options.hush_if(quiet or as_json)
    if settle and any(each is not None for each in (check, from_, seeds)):
        raise SimsplitError("--settle chooses seeds: it takes no --seeds, --check or --from")
    if (table is None) == (not missing):
        raise SimsplitError("name a table, or give --missing for all of them: simsplit papers")
    nodes, _ = options.read_cluster(cluster, cpus, gpus)
    built = _find_tables(table, tier, seeds)
    if from_ is not None:
        _import(built, from_, quiet=quiet)
        return
    heed_termination()
    try:
        how = table_measuring.MeasuringOptions(
            jobs=jobs,
            data=data,
            device=device,
            cluster=nodes,
            alone=table is not None,
            dry=dry,
            quiet=quiet or as_json,
            minutes=table_measuring.read_budget(budget),
        )
        if check is not None:
            _check(built, parse_only(only), check, lot, how)
            return
        if settle:
            outcome = table_measuring.settle_open(built, parse_only(only), most, how)
        else:
            outcome = table_measuring.measure_lacking(built, parse_only(only), how)
    except KeyboardInterrupt:
        end_interrupted(f"go on with: {shlex.join(['simsplit', *sys.argv[1:]])}")
    _finish(built, outcome, quiet=quiet, as_json=as_json)


def _find_tables(
    name: str | None, tier: Literal["small", "full"] | None, seeds: str | None
) -> "list[EvidenceTable]":
    from simsplit.evidence.evidence_tables import build_table, read_known_rows
    from simsplit.evidence.papers import find_table, list_tables
    from simsplit.evidence.selecting import parse_seeds

    wanted = parse_seeds(seeds) if seeds is not None else None
    known = read_known_rows()
    if name is not None:
        table = find_table(name)
        return [build_table(table, table.choose_tier(tier), known, wanted)]
    tier = tier or "small"
    tables = [table for table in list_tables() if tier in table.tiers]
    return [build_table(table, tier, known, wanted) for table in tables]


def parse_only(text: str | None) -> dict[str, str]:
    """Return the axes' values of --only; raise SimsplitError for one that is not AXIS=VALUE."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair]
    if wrong := next((name for name, equals, _ in pairs if not equals), None):
        raise SimsplitError(f"--only takes AXIS=VALUE,..., got '{wrong}'")
    return {name: value for name, _, value in pairs}


def _import(built: "Sequence[EvidenceTable]", folder: Path, *, quiet: bool) -> None:
    from simsplit.errors import format_count
    from simsplit.evidence.reproducing import import_runs

    if len(built) != 1:
        raise SimsplitError("--from takes one table; name it in place of --missing")
    rows = import_runs(built[0], folder)
    runs = len({(row.setting, row.seed) for row in rows})
    if not quiet:
        say(f"{format_count(len(rows), 'row')} of {format_count(runs, 'run')} taken from {folder}")


def _check(
    built: "Sequence[EvidenceTable]",
    only: dict[str, str],
    share: float,
    lot: int | None,
    how: table_measuring.MeasuringOptions,
) -> None:
    import secrets

    from simsplit.evidence import reproducing
    from simsplit.evidence.placing import names_gpu, place_cells, place_data
    from simsplit.evidence.selecting import select_known
    from simsplit.terminal.paper_tables import MeasuringLines, print_check, print_plan

    if len(built) != 1:
        raise SimsplitError("--check takes one table; name it in place of --missing")
    lot = secrets.randbelow(10_000) if lot is None else lot
    known = select_known(built[0], only, on_gpu=names_gpu(how.device, how.cluster))
    drawn = place_data(reproducing.draw_cells(known, share, lot), how.data)
    selection = place_cells(table_measuring.require_data(drawn, alone=True), how.device)
    jobs = reproducing.choose_jobs(selection, how.jobs, how.cluster)
    say(f"lot {lot} (--lot {lot} draws the same cells again)")
    if how.minutes is not None:
        selection = selection.within(how.minutes, jobs or 1)
    print_plan(selection, jobs, say)
    if how.dry or not selection.cells:
        return
    watch = MeasuringLines(make_console(stderr=True))
    outcome = reproducing.measure_again(selection, watch, lot, jobs=jobs, cluster=how.cluster)
    checked = reproducing.compare_with_known(built[0], outcome)
    print_check(checked)
    if outcome.failed or not all(each.agrees for each in checked):
        raise typer.Exit(1)


def _finish(
    built: "Sequence[EvidenceTable]", outcome: "Reproduction", *, quiet: bool, as_json: bool
) -> None:
    """Print the tables that were measured, as they are now."""
    from simsplit.evidence.presenting import describe_built
    from simsplit.terminal.paper_tables import print_evidence

    groups = {chosen.group for chosen in outcome.measured}
    again = table_measuring.build_again(
        [
            each
            for each in built
            if len(built) == 1 or f"{each.table.full_name}.{each.tier}" in groups
        ]
    )
    if as_json:
        options.print_json([describe_built(each) for each in again])
    elif not quiet:
        for each in again:
            print_evidence(each)
        if outcome.out_of_time:
            say("the budget is used up; the same command goes on")
    table_measuring.refuse_failed(outcome)
