"""What several commands take, and how they answer."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simsplit.errors import SimsplitError

if TYPE_CHECKING:
    from simsplit.plugins import Plugins


def scenario_names(incomplete: str) -> list[str]:
    """Shipped scenarios, for the shell's completion."""
    from simsplit.scenario.shipped import list_names

    return [name for name in list_names() if name.startswith(incomplete)]


File = Annotated[
    Path,
    typer.Argument(
        help="A scenario file (YAML), or the name of a shipped one: simsplit list scenarios.",
        autocompletion=scenario_names,
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


def pairs_of(overrides: list[str]) -> dict[str, str]:
    """What each --set gives, by field; SimsplitError for one that is not FIELD=VALUE."""
    pairs = {}
    for override in overrides:
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    return pairs


def plugins_of(named: list[str] | None) -> "Plugins":
    """What the modules and files of --plugin bring."""
    from simsplit.plugins import gathered

    return gathered(named or ())


def flags(option: str, values: list[str]) -> list[str]:
    """The same option for each value, as it would be typed."""
    return [word for value in values for word in (option, value)]


def print_json(told: object) -> None:
    """The one document that a command with --json has on stdout."""
    typer.echo(json.dumps(_finite(told), indent=2, allow_nan=False))


def _finite(told: object) -> object:
    """With null for what is no number, which JSON knows nothing of."""
    if isinstance(told, dict):
        return {name: _finite(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def hush_if(quiet: bool) -> None:
    """Have nothing but errors printed."""
    if quiet:
        from simsplit.terminal.hushing import hush

        hush()


def say(text: str) -> None:
    """Tell the user, beside what is printed for programs."""
    typer.echo(text, err=True)
