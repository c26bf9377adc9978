"""The command line. Whatever is heavy is imported by the command that needs it, never before."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simsplit.errors import RunFailedError, ScenarioError, SimsplitError

if TYPE_CHECKING:
    from simsplit.methods import MethodConfig
    from simsplit.report.tables import Table
    from simsplit.results import Run
    from simsplit.scenario import Scenario

app = typer.Typer(
    help="A multi-client split-learning simulator: what crosses the cut is projected, counted and "
    "watched.",
    no_args_is_help=True,
    add_completion=False,
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
    scenario = _load(file, overrides, plugin)
    from rich.console import Console

    from simsplit import console, experiment

    observer = console.observer_for(Console(stderr=True), quiet=quiet or as_json)
    path = experiment.run_directory(scenario, out, resume=resume)
    try:
        result = experiment.run(scenario, path, resume=resume, observer=observer)
    except KeyboardInterrupt:
        _say(
            f"\ninterrupted; go on with: simsplit run {file} --out {path} --resume{_flags(overrides)}"
        )
        raise typer.Exit(130) from None
    finally:
        close = getattr(observer, "close", None)
        if close is not None:
            close()
    if as_json:
        typer.echo(json.dumps({**result.summary, "path": str(path)}, indent=2))
    elif not quiet:
        _print_run(result)
        typer.echo(f"The run lies in {path}  (simsplit show {path})")


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
    for name, whole, crossing in (("cut", cut, smashed), ("features", features, sent)):
        shape, values = "x".join(map(str, whole)), "x".join(map(str, crossing))
        typer.echo(f"{name}: {shape}" + (f", sent as {values}" if whole != crossing else ""))


@app.command()
def schema(plugin: Plugin = None) -> None:
    """Print the JSON Schema of scenario files, for an editor's completion."""
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
    """List the parts that a scenario can name, with each field's meaning and default."""
    from simsplit.catalogue import catalogue

    for table in catalogue(what, _plugins(plugin)):
        _print(table, format_)


@app.command()
def show(
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
    """Put runs beside each other: accuracy, change against Raw, bytes; seeds become a spread."""
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
    """Measure the simulator against a plain PyTorch loop, interleaved in one run."""
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
        if not equals:
            raise ScenarioError("", f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    return load_scenario(file, pairs, _plugins(plugin))


def _plugins(modules: list[str] | None) -> "dict[str, type[MethodConfig]]":
    """The METHODS dicts of the modules that the user named; the only way in for foreign code."""
    methods: dict[str, Any] = {}
    for name in modules or []:
        sys.path.insert(0, str(Path.cwd()))
        try:
            module = import_module(name)
        except ImportError as error:
            raise ScenarioError("", f"--plugin {name}: cannot be imported ({error})") from None
        finally:
            sys.path.pop(0)
        if not isinstance(getattr(module, "METHODS", None), dict):
            raise ScenarioError("", f"--plugin {name}: has no METHODS dict of kind -> MethodConfig")
        methods |= module.METHODS
    return methods


def _flags(overrides: list[str]) -> str:
    return "".join(f" --set {override}" for override in overrides)


def _print_run(result: "Run", form: Literal["table", "markdown", "csv", "latex"] = "table") -> None:
    from simsplit.report.runs import show as shown

    summary = result.summary
    if form == "table":
        typer.echo(f"{summary['name']}: {summary['status']}, {summary['rounds_done']} rounds")
    for table in shown(result):
        _print(table, form)


def _print(table: "Table", form: Literal["table", "markdown", "csv", "latex"]) -> None:
    if form != "table":
        typer.echo(table.text(form) + "\n")
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 140))
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
