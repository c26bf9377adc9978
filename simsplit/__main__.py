"""The command line. Whatever is heavy is imported by the command that needs it, never before."""

import json
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import typer.core

from simsplit.errors import RunFailedError, SimsplitError

if TYPE_CHECKING:
    from simsplit.methods import MethodConfig
    from simsplit.report.tables import Table
    from simsplit.results import Run
    from simsplit.scenario import Scenario

# Plain help: it answers sooner, and pipes and NO_COLOR need no care. The mode alone does not do:
# Typer would still escape square brackets for rich.
typer.core.HAS_RICH = False
app = typer.Typer(
    help="A multi-client split-learning simulator: what crosses the cut is projected, counted and "
    "watched.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(help="A scenario file (YAML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, e.g. method.0.ratio=16."),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A module with a METHODS dict of your own."),
]
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
        bool, typer.Option("--resume", help="Go on after the last checkpoint.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")] = None,
    plugin: Plugin = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train what a scenario describes into a run directory."""
    overrides = [*(set_ or []), *([f"device={device}"] if device else [])]
    again = ["simsplit", "run", str(file)]
    try:
        scenario = _load(file, overrides, plugin)
        from rich.console import Console

        from simsplit import console, experiment

        path = experiment.run_directory(scenario, out, resume=resume)
        again += ["--out", str(path), "--resume", *_flags("--set", overrides)]
        again += _flags("--plugin", plugin or [])
        with console.watching(Console(stderr=True), quiet=quiet or as_json) as observer:
            result = experiment.run(scenario, path, resume=resume, observer=observer)
    except KeyboardInterrupt:
        _say(f"\ninterrupted; go on with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps({**result.summary, "path": str(path)}, indent=2))
    elif not quiet:
        _print_run(result)
        typer.echo(f"The run lies in {path}  ({shlex.join(['simsplit', 'show', str(path)])})")


@app.command()
def validate(file: File, set_: Set = None, plugin: Plugin = None) -> None:
    """Check a scenario without running it, and say what it would send."""
    scenario = _load(file, set_ or [], plugin)
    typer.echo(f"{file}: a valid scenario")
    info = scenario.data.source.describe()
    if info is None:
        typer.echo("its data are not known before they are loaded, so shapes were not checked")
        return
    (cut, features), (smashed, sent) = scenario.shapes(info)
    legs = [("cut", cut, smashed), ("features", features, sent)]
    for name, whole, crossing in legs[:1] if scenario.topology == "vanilla" else legs:
        shape, values = "x".join(map(str, whole)), "x".join(map(str, crossing))
        typer.echo(f"{name}: {shape}" + (f", sent as {values}" if whole != crossing else ""))


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
    format_: Format = "table",
    plugin: Plugin = None,
) -> None:
    """List what a scenario can name: fields, defaults, meanings."""
    from simsplit.catalogue import catalogue

    for table in catalogue(what, _plugins(plugin)):
        _print(table, format_)


@app.command(name="show")
def show_(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    format_: Format = "table",
) -> None:
    """Show one run: its figures, and its bytes by leg."""
    from simsplit.results import Run

    _print_run(Run.load(run_dir), format_)


@app.command()
def compare(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    format_: Format = "table",
    figure: Annotated[
        Literal["last", "best_on_validation", "best_on_test"],
        typer.Option(help="Which round of a run to quote."),
    ] = "best_on_validation",
) -> None:
    """Put runs beside each other; seeds become a mean and a spread."""
    from simsplit.report.runs import compare as compared
    from simsplit.results import Run

    _print(compared([Run.load(path) for path in run_dirs], figure), format_)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="overhead; nothing: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the steps: a smoke test.")
    ] = False,
) -> None:
    """Measure the simulator against a plain PyTorch loop."""
    from simsplit.bench import benches

    for table, figures in benches(name, device=device, quick=quick, say=_say):
        if as_json:
            typer.echo(json.dumps(figures, indent=2))
        else:
            _print(table, "table")


def _load(file: Path, overrides: list[str], plugin: list[str] | None) -> "Scenario":
    from simsplit.scenario import load_scenario

    pairs = {}
    for override in overrides:
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    return load_scenario(file, pairs, _plugins(plugin))


def _plugins(modules: list[str] | None) -> "dict[str, type[MethodConfig]]":
    """The METHODS dicts of the modules that the user named; the only way in for foreign code."""
    methods: dict[str, type[MethodConfig]] = {}
    for name in modules or []:
        methods |= _methods_of(name)
    return methods


def _methods_of(name: str) -> "dict[str, type[MethodConfig]]":
    from simsplit.methods import METHODS, MethodConfig

    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(name), "METHODS", None)
    except Exception as error:  # noqa: BLE001 - whatever a module of the user's raises
        wrong = f"{type(error).__name__}: {error}"
        raise SimsplitError(f"--plugin {name}: cannot be imported ({wrong})") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(found, dict):
        raise SimsplitError(f"--plugin {name}: has no METHODS dict of kind -> MethodConfig")
    for kind, config in found.items():
        if not (isinstance(config, type) and issubclass(config, MethodConfig)):
            raise SimsplitError(f"--plugin {name}: METHODS['{kind}'] is no MethodConfig class")
        said = getattr(config.model_fields.get("kind"), "default", None)
        if said != kind:
            raise SimsplitError(
                f"--plugin {name}: METHODS['{kind}'] needs `kind: Literal['{kind}'] = '{kind}'`, "
                f"got {said!r}"
            )
        if kind in METHODS:
            raise SimsplitError(f"--plugin {name}: '{kind}' is a method already; choose another")
    return found


def _flags(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _print_run(result: "Run", form: Literal["table", "markdown", "csv", "latex"] = "table") -> None:
    from simsplit.report.runs import heading, show

    if form == "table":
        typer.echo(heading(result))
    for table in show(result):
        _print(table, form)


def _print(table: "Table", form: Literal["table", "markdown", "csv", "latex"]) -> None:
    if form != "table":
        typer.echo(table.text(form) + "\n")
        return
    from rich.console import Console

    # NO_COLOR leaves rich its bold and italics, which are escape codes too
    console = Console(force_terminal=False if os.environ.get("NO_COLOR") else None)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 140
    console.print(table.rich(), highlight=False)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def main() -> None:
    """Run the command line; errors that a user can mend become a message and exit code 2."""
    try:
        app(prog_name="simsplit")
    except RunFailedError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except SimsplitError as error:
        _say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
