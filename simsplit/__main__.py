"""The command line. Whatever is heavy is imported by the command that needs it, never before."""

import json
import math
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import typer.core

from simsplit.deploy import commands as deployed
from simsplit.errors import RunFailedError, ScenarioError, SimsplitError

if TYPE_CHECKING:
    from simsplit.plugins import Plugins

# Plain help: it answers sooner, and pipes and NO_COLOR need no care. The mode alone does not do:
# Typer would still escape square brackets for rich.
typer.core.HAS_RICH = False
app = typer.Typer(
    help="A multi-client split-learning simulator: what crosses the cut is projected, counted and "
    "watched.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"simsplit {version('simsplit')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


def _scenario_names(incomplete: str) -> list[str]:
    """Shipped scenarios, for the shell's completion."""
    from simsplit.scenario.shipped import names

    return [name for name in names() if name.startswith(incomplete)]


File = Annotated[
    Path,
    typer.Argument(
        help="A scenario file (YAML), or the name of a shipped one: simsplit list scenarios.",
        autocompletion=_scenario_names,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, e.g. method.0.ratio=16."),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE",
        help="A module, or a .py file, with parts of your own: METHODS, ATTACKS, METRICS, ...",
    ),
]
Unneeded = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE",
        help="Has no effect here: a run of a plugin is read without it.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="KIND", help="Also keep figures in tensorboard, mlflow or wandb."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print plain values as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Format = Annotated[
    Literal["table", "markdown", "csv", "latex"], typer.Option("--format", help="How to print it.")
]


@app.command()
def run(
    file: File,
    *,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    set_: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    device: Device = None,
    plugin: Plugin = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train what a scenario describes into a run directory."""
    _hush(quiet or as_json)
    overrides = [*(set_ or []), *([f"device={device}"] if device else [])]
    again = ["simsplit", "run", str(file)]
    try:
        known = _plugins(plugin)
        from rich.console import Console

        from simsplit import experiment
        from simsplit.scenario import load_scenario
        from simsplit.scenario.tracked import tracked
        from simsplit.terminal.reminding import reminded
        from simsplit.terminal.runs import observer_for

        with reminded(file, _pairs(overrides), out, known, resume=resume):
            scenario = load_scenario(file, _pairs(overrides), known)
        scenario = tracked(scenario, track or [])
        path = experiment.run_directory(scenario, out, resume=resume)
        again += ["--out", str(path), "--resume", *_flags("--set", overrides)]
        again += [*_flags("--plugin", plugin or []), *_flags("--track", track or [])]
        observer = observer_for(Console(stderr=True), quiet=quiet or as_json)
        result = experiment.run(scenario, path, resume=resume, observers=[observer])
    except KeyboardInterrupt:
        _say(f"\ninterrupted; go on with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    if as_json:
        _print_json({**result.summary, "path": str(path)})
    elif not quiet:
        from simsplit.terminal.printing import print_run

        print_run(result)
        if drawn := sorted(file.stem for file in (result.path / "figures").glob("*.png")):
            typer.echo(f"figures: {', '.join(drawn)}, in {result.path / 'figures'}")
        typer.echo(f"The run lies in {path}  ({shlex.join(['simsplit', 'show', str(path)])})")


@app.command()
def sweep(
    file: File,
    *,
    out: Annotated[Path | None, typer.Option(help="Sweep directory; default runs/NAME.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: processors / threads.")
    ] = None,
    set_: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished cells, continue the others.")
    ] = False,
    device: Device = None,
    plugin: Plugin = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Run every cell of a scenario's sweep, and compare them."""
    _hush(quiet or as_json)
    overrides = [*(set_ or []), *([f"device={device}"] if device else [])]
    again = ["simsplit", "sweep", str(file)]
    try:
        from rich.console import Console

        from simsplit.scenario import load_sweep
        from simsplit.scenario.tracked import tracked_sweep
        from simsplit.sweep import run_sweep
        from simsplit.sweep.plan import sweep_directory
        from simsplit.terminal.reminding import reminded
        from simsplit.terminal.sweeps import watching_sweep

        known = _plugins(plugin)
        with reminded(file, _pairs(overrides), out, known, resume=resume):
            loaded = load_sweep(file, _pairs(overrides), known)
        for name in filter(loaded.hides, _pairs(overrides)):
            _say(f"note: {name} is swept, so its override does nothing; use --set sweep.{name}=...")
        loaded = tracked_sweep(loaded, track or [])
        path = sweep_directory(loaded, out, resume=resume)
        again += ["--out", str(path), "--resume", *(["--jobs", str(jobs)] if jobs else [])]
        again += [*_flags("--set", overrides), *_flags("--plugin", plugin or [])]
        again += _flags("--track", track or [])
        with watching_sweep(Console(stderr=True), quiet=quiet or as_json) as watch:
            result = run_sweep(loaded, path, jobs=jobs, resume=resume, watch=watch)
    except KeyboardInterrupt:
        _say(f"\ninterrupted; go on with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    if as_json:
        _print_json(result.told())
    elif not quiet:
        from simsplit.report.figures import save_attacked
        from simsplit.terminal.printing import print_comparison

        if result.runs:
            print_comparison([result.path])
            if (picture := save_attacked(result.runs, result.path)) is not None:
                typer.echo(f"what was recovered, in a picture: {picture}")
        show = shlex.join(["simsplit", "compare", str(result.path)])
        typer.echo(f"The sweep lies in {result.path}  ({show})")
    if result.failed:
        raise RunFailedError(f"{result.why()}\ngo on with: {shlex.join(again)}")


@app.command()
def validate(file: File, set_: Set = None, plugin: Plugin = None, as_json: Json = False) -> None:
    """Check a scenario without running it, and say what it would send."""
    from simsplit.scenario import has_sweep, load_scenario, load_sweep
    from simsplit.scenario.doubts import doubts_of
    from simsplit.terminal.documents import of_mistakes, of_scenario
    from simsplit.terminal.validating import told, told_of_cells

    overrides, known = _pairs(set_ or []), _plugins(plugin)
    try:
        if has_sweep(file, overrides):
            cells = load_sweep(file, overrides, known).cells
            names = [cell.name for cell in cells]
            said, doubts = told_of_cells(names), doubts_of(cells[0].scenario)
            document: dict[str, object] = {"valid": True, "cells": names}
        else:
            scenario = load_scenario(file, overrides, known)
            said, doubts, document = told(scenario), doubts_of(scenario), of_scenario(scenario)
    except ScenarioError as error:
        if not as_json:
            raise
        _print_json(of_mistakes(error))
        raise typer.Exit(2) from None
    if as_json:
        _print_json({"file": str(file), **document, "warnings": doubts})
        return
    typer.echo(f"{file}: {said}")
    for doubt in doubts:
        _say(f"warning: {doubt}")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the scenario, and of its file.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SCENARIO",
            help="The file or shipped scenario to start from.",
            autocompletion=_scenario_names,
        ),
    ] = "quickstart",
) -> None:
    """Write a scenario file of your own to start from."""
    from simsplit.scenario.starting import SCHEMA, begin

    file = begin(name, from_, Path())
    typer.echo(f"{file}: a copy of {from_}; {SCHEMA} beside it tells editors its fields")
    typer.echo(f"check it: simsplit validate {file}")


@app.command()
def schema(plugin: Plugin = None) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simsplit.scenario import file_schema

    typer.echo(json.dumps(file_schema(_plugins(plugin)), indent=2))


@app.command(name="list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help="methods, models, data, partitions, schedules, ...")
    ] = None,
    part: Annotated[str | None, typer.Argument(help="One of them alone, by its kind.")] = None,
    format_: Format = "table",
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """List the parts that a scenario can name, and their fields."""
    from simsplit.catalogue import catalogue
    from simsplit.terminal.choosing import chosen
    from simsplit.terminal.documents import of_tables
    from simsplit.terminal.printing import print_table

    tables = chosen(catalogue(what, _plugins(plugin)), what, part)
    if as_json:
        _print_json(of_tables(tables))
        return
    for table in tables:
        print_table(table, format_)


@app.command(name="show")
def show_(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    format_: Format = "table",
    plugin: Unneeded = None,
    as_json: Json = False,
) -> None:
    """Show one run: its figures, and its bytes by leg."""
    from simsplit.results import Run
    from simsplit.terminal.documents import of_run
    from simsplit.terminal.printing import print_run

    _plugins(plugin)
    if as_json:
        _print_json(of_run(Run.load(run_dir)))
    else:
        print_run(Run.load(run_dir), format_)


@app.command(name="watch")
def watch_(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or sweep directory, of another process.")
    ],
) -> None:
    """Follow a run or a sweep of another process until it ends."""
    from rich.console import Console

    from simsplit.terminal.watching import watch

    try:
        finished = watch(run_dir, Console())
    except KeyboardInterrupt:
        raise typer.Exit from None
    if not finished:
        raise typer.Exit(1)


@app.command()
def compare(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")
    ],
    *,
    format_: Format = "table",
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
        typer.Option(help="Print one: settings, recovered, detections, overview; csv has one."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="X,Y", help="Draw settings by two figures, or one over a swept field."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The drawing's file; default Y-by-X.png.")
    ] = None,
    plugin: Unneeded = None,
    as_json: Json = False,
) -> None:
    """Compare runs in tables or a drawing; seeds become means."""
    from simsplit.terminal.documents import of_comparison
    from simsplit.terminal.printing import plot_comparison, print_comparison

    _plugins(plugin)
    if as_json:
        _print_json(of_comparison(run_dirs))
    elif plot is not None:
        typer.echo(f"figure: {plot_comparison(run_dirs, plot, out, figure, _say)}")
    else:
        print_comparison(run_dirs, format_, figure, baseline, _say, table=table)


@app.command()
def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default report.html in the directory, of several here."),
    ] = None,
    plugin: Unneeded = None,
) -> None:
    """Write one HTML page on runs and sweeps; draw runs' figures anew."""
    from simsplit.terminal.reporting import write_report

    _plugins(plugin)
    typer.echo(f"report: {write_report(run_dirs, out, _say)}")


@app.command()
def attack(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    kind: Annotated[str, typer.Option(help="unsplit, whitebox, ...: simsplit list attacks.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="A field of the attack, or of its targets."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted attack.")
    ] = False,
    plugin: Plugin = None,
    quiet: Quiet = False,
    format_: Format = "table",
    as_json: Json = False,
) -> None:
    """Attack a finished run through what its clients send."""
    _hush(quiet or as_json)
    from rich.console import Console

    from simsplit.attacking.finished import attack as attack_finished
    from simsplit.report.figures import drawn, read, saved
    from simsplit.report.figures import recovered as picture
    from simsplit.report.labels import told_of_labels
    from simsplit.report.recoveries import recovered, sentences
    from simsplit.report.sessions import dialogues, told_of_sessions
    from simsplit.terminal.documents import of_attack
    from simsplit.terminal.printing import print_table
    from simsplit.terminal.runs import counting

    changes = _pairs(set_ or [])
    name, known = changes.get("name", kind), _plugins(plugin)
    try:
        with counting(Console(stderr=True), name, quiet=quiet or as_json) as progress:
            run = attack_finished(
                run_dir, kind, changes, resume=resume, progress=progress, plugins=known
            )
    except KeyboardInterrupt:
        again = ["simsplit", "attack", str(run_dir), "--kind", kind, "--resume"]
        again += [*_flags("--set", set_ or []), *_flags("--plugin", plugin or [])]
        _say(f"\ninterrupted; go on with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    if as_json:
        _print_json(of_attack(run, name))
    elif not quiet:
        folder, file = run.path / "attacks" / name, run.path / "figures" / f"{name}.png"
        if name in set(run.labels.get("attack", ())):
            print_table(told_of_labels(run), format_)
            return
        if name in set(run.sessions.get("attack", ())):
            print_table(told_of_sessions(run), format_)
            print_table(dialogues(run), format_)
            return
        print_table(recovered(run), format_)
        if "text" in run.recovered:
            print_table(sentences(run), format_)
            saved(drawn(read(run)), file)
        else:
            saved(picture(folder), file)
        typer.echo(f"what was recovered, in a picture: {file}")


@app.command()
def chat(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    prompt: Annotated[
        str | None, typer.Option(help="One prompt; without it they are asked for, one by one.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens per text, at most.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="Draw tokens; default: always the likeliest.")
    ] = None,
    client: Annotated[int, typer.Option(help="Whose head and tail.")] = 0,
    plugin: Plugin = None,
    format_: Format = "table",
) -> None:
    """Write through the cut of a finished run."""
    from simsplit.evaluation.sampling import Sampling
    from simsplit.terminal.chatting import Chat
    from simsplit.terminal.printing import print_table

    made = Chat(run_dir, client, _plugins(plugin))
    sampling = None if temperature is None else Sampling(temperature=temperature)
    asked = [prompt] if prompt is not None else iter(lambda: typer.prompt("prompt", ""), "")
    for each in asked:
        written = made.write(each, tokens, sampling)
        typer.echo(written.text)
        if written.read is not None:
            typer.echo(f"the server reads: {written.read}")
        print_table(written.told(), format_)


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default RUN/export.")] = None,
    client: Annotated[
        int | None, typer.Option(help="Whose head and tail, where clients have their own.")
    ] = None,
    as_: Annotated[
        Literal["safetensors", "transformers"],
        typer.Option("--as", help="One file of weights, or a transformers folder."),
    ] = "safetensors",
    plugin: Plugin = None,
) -> None:
    """Write the network of a run's last checkpoint for use elsewhere."""
    from simsplit.assembly.exporting import export as write
    from simsplit.assembly.trained import trained

    network = trained(run_dir, client, _plugins(plugin))
    for file in write(network, out or run_dir / "export", as_):
        typer.echo(str(file))
    if as_ == "safetensors" and network.scenario.method:
        names = ", ".join(method.word for method in network.scenario.method)
        _say(f"note: the file is without {names}, which it was trained with (simsplit.trained)")


@app.command()
def pretrain(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The model's folder, to be made.")],
    *,
    tier: Annotated[
        Literal["ci", "demo", "gpu"], typer.Option(help="Preset of all fields.")
    ] = "demo",
    text: Annotated[
        Path | None,
        typer.Option(help="A .txt, .md or .parquet file, or a folder; default: Python's docs."),
    ] = None,
    family: Annotated[
        Literal["llama", "qwen3", "gpt2"] | None, typer.Option(help="The architecture.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Values per token between layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of attention and MLP.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads per layer.")] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Number of tokens of the tokenizer.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Maximum number of positions.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows of text per step.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and batches.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="torch threads; default: all.")] = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Train a small language model from nothing."""
    fields = {
        "text": text, "family": family, "width": width, "layers": layers, "heads": heads,
        "vocabulary": vocabulary, "context": context, "steps": steps, "batch_size": batch_size,
        "length": length, "lr": lr, "seed": seed,
    }  # fmt: skip
    from rich.console import Console

    from simsplit import pretrain as training
    from simsplit.machine import pinned_threads
    from simsplit.pretrain.tiers import config_of
    from simsplit.terminal.pretraining import closing, named_device, opening, watching_pretraining

    config = config_of(tier, {name: got for name, got in fields.items() if got is not None})
    place, kept = named_device(device), training.is_there(out, config)
    if not (quiet or as_json or kept):
        _say(opening(config, out))
    try:
        with (
            watching_pretraining(Console(stderr=True), config, quiet=quiet or as_json) as watch,
            pinned_threads(threads),
        ):
            training.pretrain(config, out, watch, place)
    except KeyboardInterrupt:
        _say("\ninterrupted; nothing was kept")
        raise typer.Exit(130) from None
    facts = training.facts_of(out)
    if as_json:
        _print_json({**facts, "path": str(out)})
    elif not quiet:
        typer.echo(closing(facts, out, kept=kept))


@app.command()
def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="overhead, scale, detectors, attacks, language, deploy; nothing: all."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON, by bench and table.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the steps: a smoke test.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin", metavar="MODULE|FILE", help="Measure its methods and models (overhead)."
        ),
    ] = None,
) -> None:
    """Measure the simulator against a plain PyTorch loop."""
    from simsplit.bench import benches
    from simsplit.terminal.printing import print_table

    told: dict[str, dict[str, object]] = {}
    known = _plugins(plugin)
    for each, table, figures in benches(name, device=device, quick=quick, say=_say, plugins=known):
        told.setdefault(each, {})[table.title] = figures
        if not as_json:
            print_table(table, "table")
    if as_json:
        _print_json(told)


app.command()(deployed.serve)
app.command()(deployed.join)
app.add_typer(deployed.keeper, name="deploy")


def _pairs(overrides: list[str]) -> dict[str, str]:
    pairs = {}
    for override in overrides:
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    return pairs


def _plugins(named: list[str] | None) -> "Plugins":
    from simsplit.plugins import gathered

    return gathered(named or ())


def _flags(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _print_json(told: object) -> None:
    """The one document that a command with --json has on stdout."""
    typer.echo(json.dumps(_finite(told), indent=2, allow_nan=False))


def _finite(told: object) -> object:
    """With null for what is no number, which JSON knows nothing of."""
    if isinstance(told, dict):
        return {name: _finite(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _hush(quiet: bool) -> None:
    if quiet:
        from simsplit.terminal.hushing import hush

        hush()


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _blame(error: SimsplitError) -> str:
    """An error in a line; several mistakes below one heading."""
    problems = error.problems if isinstance(error, ScenarioError) else [error]
    if len(problems) == 1:
        return f"error: {error}"
    return "\n  ".join([f"error: {len(problems)} mistakes", *map(str, problems)])


def main() -> None:
    """Run the command line; errors that a user can mend become a message and exit code 2."""
    try:
        app(prog_name="simsplit")
    except RunFailedError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except SimsplitError as error:
        _say(_blame(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
