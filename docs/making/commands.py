"""The command line's own help, and what holds for all commands, as a page."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer
from typer.main import get_command
from typer.utils import get_params_from_function

import simsplit
from making.markup import code, fence, plain, table
from simsplit import caching
from simsplit.__main__ import app

_HEAD = """\
# Command line

`python -m simsplit` is the same as `simsplit`. `simsplit --install-completion` has your shell complete commands and the names of
scenarios. `--json` prints plain values for programs; nothing else is on standard output then.

## Which value wins

The later of these has the last word:

1. the defaults (`simsplit list scenario`);
2. the file that a scenario `extends`, and what that one extends;
3. the scenario file;
4. `--set FIELD=VALUE`, in the order given, and then `--device` and `--track`;
5. in a sweep, what the cell gives: `--set seed=3` does nothing where `seed` is swept, and a note says so. `--set sweep.seed=3` changes
   the sweep.

Mappings merge key by key. Lists are replaced, and so is a mapping of another `kind`. No environment variable changes a scenario.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | a run that had started could not go on (a full disk, a loss that is not finite), or a cell of a sweep failed; what was written stays |
| 2 | a mistake that you can mend: a scenario, an option, data, a run directory. Nothing was trained |
| 130 | interrupted (Ctrl-C); the message names the command that goes on |
| 143 | asked to terminate (SIGTERM, of docker, slurm or `kill`); the same |
"""
_READ = {
    caching.VARIABLE: "where pretrained models are kept, and the answers of commands that only print; default `~/.cache/simsplit`",
    "NO_COLOR": "no colours and no bold in tables",
    "FORCE_COLOR": "colours in tables where nothing is a terminal",
    "COLUMNS": "how wide tables are where nothing is a terminal; default 140",
}
_OTHERS = (
    "Libraries read their own: `HF_HOME` and `HF_HUB_OFFLINE` (models and data of the hub),"
    " `OMP_NUM_THREADS` (where a scenario sets no `threads`)."
)


def page() -> str:
    """Make a section per command: its call, its help, its arguments and options."""
    group = get_command(app)
    context = typer.Context(group, info_name="simsplit")
    return "\n\n".join([_HEAD, *_variables(), *_sections(group, context)])


def environment() -> set[str]:
    """Return every environment variable that the package reads or sets."""
    result = set()
    for file in Path(simsplit.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "os.environ" in text:
            words = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
            result |= {word for word in words if isinstance(word, str) and _NAME.fullmatch(word)}
    return result


_NAME = re.compile(r"[A-Z]+(_[A-Za-z]+)+|COLUMNS")


def _variables() -> Iterator[str]:
    yield "## Environment variables"
    yield table(("variable", "meaning"), [(code(name), words) for name, words in _READ.items()])
    others = ", ".join(code(name) for name in sorted(environment() - set(_READ)))
    yield f"{_OTHERS}\n\nSet so that libraries stay quiet and quick, unless you set them: {others}."


def _sections(group: typer.core.TyperGroup, context: typer.Context) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield from _sections(command, inner)
        else:
            yield _section(command, inner)


def _section(command: typer.core.TyperCommand, context: typer.Context) -> str:
    parts = [
        f"## {context.command_path.removeprefix('simsplit ')}",
        fence(command.get_usage(context).removeprefix("Usage: "), "text"),
        plain(command.help or ""),
        table(("option", "meaning"), _options(command, context)),
    ]
    return "\n\n".join(parts)


def _options(command: typer.core.TyperCommand, context: typer.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            help_ = record[1] if parameter.help else f"{_argument(command, parameter)} {record[1]}"
            yield code(record[0]), plain(help_.strip())


def _argument(command: typer.core.TyperCommand, parameter: click.Parameter) -> str:
    """Return the help of an argument as it was declared: click 8.5 loses it under typer 0.20."""
    declared = get_params_from_function(inspect.unwrap(command.callback)).get(parameter.name)
    return getattr(declared.default, "help", None) or "" if declared else ""
