"""Several commands share these options, and the functions by which they print."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simsplit.errors import SimsplitError
from simsplit.showing.saying import echo, hush

if TYPE_CHECKING:
    from simsplit.plugins import Plugins
    from simsplit.sweep.nodes import Cluster


def complete_scenario_names(incomplete: str) -> list[str]:
    """Return the shipped scenarios that complete a name, for the shell."""
    from simsplit.scenario.shipped import list_names

    return [name for name in list_names() if name.startswith(incomplete)]


File = Annotated[
    Path,
    typer.Argument(
        help="A scenario file (YAML), or the name of a shipped one: simsplit list scenarios.",
        autocompletion=complete_scenario_names,
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
Seeds = Annotated[
    str | None, typer.Option(metavar="A-B", help="Such as 0-2 or 0,5; default: as defined there.")
]
Only = Annotated[
    str | None, typer.Option(metavar="AXIS=VALUE,...", help="Measure only these rows.")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Cells at a time; default: processors / threads.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run cells on a Ray cluster: auto, or host:port."),
]
CellCpus = Annotated[
    float | None,
    typer.Option(
        "--cpus-per-cell", min=0, help="Processors of a cell there; default: its threads."
    ),
]
CellGpus = Annotated[
    float, typer.Option("--gpus-per-cell", min=0, help="GPUs of a cell there, such as 0.25.")
]
Budget = Annotated[str | None, typer.Option(metavar="2h", help="Measure no longer than this.")]
DataFolder = Annotated[Path | None, typer.Option(help="Folder of the data sets; default ./data.")]
Format = Annotated[
    Literal["table", "markdown", "csv", "latex"], typer.Option("--format", help="How to print it.")
]


def read_cluster(
    address: str | None, cpus: float | None, gpus: float
) -> tuple["Cluster | None", list[str]]:
    """Return the cluster that options name, and these options; raise SimsplitError without one."""
    from simsplit.sweep.nodes import Cluster

    shares = [("--cpus-per-cell", cpus), ("--gpus-per-cell", gpus or None)]
    given = [(name, f"{share:g}") for name, share in shares if share is not None]
    if address is not None:
        flags = ["--cluster", address, *(word for pair in given for word in pair)]
        return Cluster(address, cpus, gpus), flags
    for name, _ in given:
        raise SimsplitError(f"{name}: is of a cluster; give --cluster ADDRESS too")
    return None, []


def parse_pairs(overrides: list[str]) -> dict[str, str]:
    """Return the values of --set by field; raise SimsplitError for one that is not FIELD=VALUE."""
    pairs = {}
    for override in overrides:
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    return pairs


def load_plugins(named: list[str] | None) -> "Plugins":
    """Load the modules and files of --plugin."""
    from simsplit.plugins import gather_plugins

    return gather_plugins(named or ())


def try_plugins(named: list[str] | None) -> None:
    """Load the modules and files of --plugin for a command that needs none of them.

    A mistake in them is reported all the same. Without any, nothing is imported.
    """
    if named:
        load_plugins(named)


def make_flags(option: str, values: list[str]) -> list[str]:
    """Return the words that give an option once for each value."""
    return [word for value in values for word in (option, value)]


def print_json(document: object) -> None:
    """Print the one document that a command with --json has on stdout."""
    echo(json.dumps(_replace_infinite(document), indent=2, allow_nan=False))


def _replace_infinite(value: object) -> object:
    """Return a value with null in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _replace_infinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def hush_if(quiet: bool) -> None:
    """Have libraries print errors only, if the command is quiet."""
    if quiet:
        hush()
