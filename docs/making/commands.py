"""The command line's own help, as a page."""

from collections.abc import Iterator

import typer
from typer.main import get_command

from making.markup import code, fenced, plain, table
from simsplit.__main__ import app

_HEAD = """\
# Command line

`python -m simsplit` is the same as `simsplit`. A mistake is answered with exit code 2 before
anything is trained; a run that fails ends with 1.
"""


def page() -> str:
    """A section per command: its call, what it says of itself, its arguments and options."""
    group = get_command(app)
    context = typer.Context(group, info_name="simsplit")
    assert hasattr(group, "commands")
    return "\n\n".join([_HEAD, *(_section(each, context) for each in group.commands.values())])


def _section(command: typer.core.TyperCommand, parent: typer.Context) -> str:
    context = typer.Context(command, info_name=command.name, parent=parent)
    parts = [
        f"## {command.name}",
        fenced(command.get_usage(context).removeprefix("Usage: ")),
        plain(command.help or ""),
        table(("option", "meaning"), _options(command, context)),
    ]
    return "\n\n".join(parts)


def _options(command: typer.core.TyperCommand, context: typer.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield code(record[0]), plain(record[1])
