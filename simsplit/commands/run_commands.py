"""`simsplit run` and `sweep` train, and `watch` follows the training of another process."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simsplit.commands import options
from simsplit.errors import RunFailedError, format_count
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say

if TYPE_CHECKING:
    from simsplit.scenario import Sweep


def run(
    file: options.File,
    *,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    set_: options.Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    device: options.Device = None,
    plugin: options.Plugin = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train what a scenario describes into a run directory."""
    heed_termination()
    options.hush_if(quiet or as_json)
    overrides = [*(set_ or []), *([f"device={device}"] if device else [])]
    again = ["simsplit", "run", str(file)]
    try:
        known = options.load_plugins(plugin)
        from simsplit import whole_run
        from simsplit.running.directories import choose_run_directory, holds_run
        from simsplit.scenario import load_scenario
        from simsplit.scenario.loading import remind_of_plugins
        from simsplit.scenario.sweep_files import add_observers
        from simsplit.showing.run_output import make_observer

        with remind_of_plugins(file, options.parse_pairs(overrides), out, known, resume=resume):
            scenario = load_scenario(file, options.parse_pairs(overrides), known)
        scenario = add_observers(scenario, track or [])
        path = choose_run_directory(scenario, out, resume=resume)
        if resume and not holds_run(path):
            _announce_start(path, "run", "round 1", silent=quiet or as_json)
        again += ["--out", str(path), "--resume", *options.make_flags("--set", overrides)]
        again += [
            *options.make_flags("--plugin", plugin or []),
            *options.make_flags("--track", track or []),
        ]
        observer = make_observer(make_console(stderr=True), quiet=quiet or as_json)
        result = whole_run.run(scenario, path, resume=resume, observers=[observer])
    except KeyboardInterrupt:
        end_interrupted(f"go on with: {shlex.join(again)}")
    if as_json:
        options.print_json({**result.summary, "path": str(path)})
    elif not quiet:
        from simsplit.terminal.printing import print_run

        print_run(result)
        if drawn := sorted(file.stem for file in (result.path / "figures").glob("*.png")):
            echo(f"figures: {', '.join(drawn)}, in {result.path / 'figures'}")
        echo(f"The run lies in {path}  ({shlex.join(['simsplit', 'show', str(path)])})")


def _announce_start(path: Path, kind: Literal["run", "sweep"], start: str, *, silent: bool) -> None:
    """Say that a folder to resume holds nothing yet; refuse one that is probably misspelt."""
    from simsplit.running.directories import refuse_misspelt

    refuse_misspelt(path, kind)
    if not silent:
        say(f"there is no {kind} in {path} to go on with; it starts from {start}")


def sweep(
    file: options.File,
    *,
    out: Annotated[Path | None, typer.Option(help="Sweep directory; default runs/NAME.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: processors / threads.")
    ] = None,
    set_: options.Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished cells, continue the others.")
    ] = False,
    device: options.Device = None,
    plugin: options.Plugin = None,
    track: options.Track = None,
    cluster: options.ClusterAddress = None,
    cpus: options.CellCpus = None,
    gpus: options.CellGpus = 0,
    quiet: options.Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Run every cell of a scenario's sweep, and compare them."""
    heed_termination()
    options.hush_if(quiet or as_json)
    overrides = [*(set_ or []), *([f"device={device}"] if device else [])]
    again = ["simsplit", "sweep", str(file)]
    try:
        from simsplit.scenario import load_sweep
        from simsplit.scenario.loading import remind_of_plugins
        from simsplit.scenario.sweep_files import add_observers_to_sweep
        from simsplit.showing.sweep_output import watch_sweep
        from simsplit.sweep import run_sweep
        from simsplit.sweep.plan import choose_sweep_directory, holds_sweep

        known = options.load_plugins(plugin)
        with remind_of_plugins(file, options.parse_pairs(overrides), out, known, resume=resume):
            loaded = load_sweep(file, options.parse_pairs(overrides), known)
        _note_hidden(loaded, overrides)
        loaded = add_observers_to_sweep(loaded, track or [])
        path = choose_sweep_directory(loaded, out, resume=resume)
        if resume and not holds_sweep(loaded, path):
            _announce_start(path, "sweep", "the first cell", silent=quiet or as_json)
        again += ["--out", str(path), "--resume", *(["--jobs", str(jobs)] if jobs else [])]
        again += [
            *options.make_flags("--set", overrides),
            *options.make_flags("--plugin", plugin or []),
        ]
        again += options.make_flags("--track", track or [])
        nodes, flags = options.read_cluster(cluster, cpus, gpus)
        again += flags
        _announce_search(loaded, silent=quiet or as_json)
        with watch_sweep(make_console(stderr=True), quiet=quiet or as_json) as watch:
            result = run_sweep(loaded, path, jobs=jobs, resume=resume, watch=watch, cluster=nodes)
    except KeyboardInterrupt:
        end_interrupted(f"go on with: {shlex.join(again)}")
    if as_json:
        options.print_json(result.to_dict())
    elif not quiet:
        from simsplit.terminal.printing import print_comparison, print_pictures

        if result.runs:
            print_comparison([result.path])
            print_pictures(result.runs, result.path)
            if loaded.is_search and len(result.runs) > 1:
                _print_answer(result.path)
        show = shlex.join(["simsplit", "compare", str(result.path)])
        echo(f"The sweep lies in {result.path}  ({show})")
    if result.failed:
        raise RunFailedError(f"{result.why()}\ngo on with: {shlex.join(again)}")


def _note_hidden(sweep: "Sweep", overrides: list[str]) -> None:
    """Note overrides of swept fields, which do nothing."""
    for name in filter(sweep.hides, options.parse_pairs(overrides)):
        say(f"note: {name} is swept, so its override does nothing; use --set sweep.{name}=...")


def _announce_search(loaded: "Sweep", *, silent: bool) -> None:
    """Print what a search will try, if the sweep is one."""
    from simsplit.terminal.documents import describe_search

    if loaded.search is not None and not silent:
        say(describe_search(loaded))


def _print_answer(path: Path) -> None:
    """Print which setting of a search is best, and the command that writes it as a scenario."""
    from simsplit.report.grouping import load_search
    from simsplit.report.ranking import describe_best, rank_loaded

    ranking = rank_loaded(load_search([path]))
    echo(describe_best(ranking))
    if ranking.pruned:
        echo(f"given up early: {format_count(len(ranking.pruned), 'setting')}")
    echo(f"all in order: {shlex.join(['simsplit', 'rank', str(path), '--write', 'best.yaml'])}")


def watch_(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or sweep directory, of another process.")
    ],
    *,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="Keep a report of it in this HTML file."),
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve that report to browsers on this machine; 0 takes a free port.",
        ),
    ] = None,
) -> None:
    """Follow a run or a sweep of another process until it ends."""
    from contextlib import nullcontext

    from simsplit.terminal.watching import watch

    try:
        if page is None and serve is None:
            finished = watch(run_dir, make_console())
        else:
            from simsplit.terminal.live_page import LivePage, serve_page

            live = LivePage(run_dir, page or run_dir / "live.html")
            live.update()
            served = nullcontext("") if serve is None else serve_page(live.file, serve)
            with served as address:
                say(f"report: {address or live.file}, written anew as rounds end")
                finished = watch(run_dir, make_console(), live)
    except KeyboardInterrupt:
        raise typer.Exit from None
    if not finished:
        raise typer.Exit(1)
