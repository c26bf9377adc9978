"""The command line. Whatever is heavy is imported by the command that needs it, never before."""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated

import typer
import typer.core

from simsplit.commands import (
    attacking,
    boards,
    clients,
    evidence,
    measuring,
    planning,
    publishing,
    results,
    scenarios,
    training,
)
from simsplit.commands.fields import CommandOfFields, takes_fields
from simsplit.deploy import commands as deployment
from simsplit.errors import RunFailedError, ScenarioError, SimsplitError
from simsplit.terminal.saying import echo, say

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
    suggest_commands=False,  # click does so by itself
)


def _tell_version(asked: bool) -> None:
    if asked:
        echo(f"simsplit {version('simsplit')}")
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
    """Take the options of the program itself."""


_COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": training.run,
    "sweep": training.sweep,
    "validate": scenarios.validate,
    "plan": planning.plan,
    "new": scenarios.new,
    "schema": scenarios.schema,
    "list": scenarios.list_,
    "cite": scenarios.cite,
    "show": results.show_,
    "clients": clients.clients,
    "watch": training.watch_,
    "compare": results.compare,
    "rank": results.rank,
    "report": results.report,
    "papers": evidence.papers,
    "reproduce": evidence.reproduce,
    "board": boards.board,
    "attack": attacking.attack,
    "chat": attacking.chat,
    "export": results.export,
    "push": publishing.push,
    "pull": publishing.pull,
    "pretrain": measuring.pretrain,
    "bench": measuring.bench,
    "serve": deployment.serve,
    "join": deployment.join,
}
for _name, _command in _COMMANDS.items():
    app.command(name=_name, cls=CommandOfFields if takes_fields(_command) else None)(_command)
app.add_typer(deployment.deploy_app, name="deploy")


def _blame(error: SimsplitError) -> str:
    """Format an error as one line, or several mistakes below one heading."""
    problems = error.problems if isinstance(error, ScenarioError) else [error]
    if len(problems) == 1:
        return f"error: {error}"
    return "\n  ".join([f"error: {len(problems)} mistakes", *map(str, problems)])


def main() -> None:
    """Run the command line; errors that a user can mend become a message and exit code 2."""
    try:
        app(prog_name="simsplit")
    except RunFailedError as error:
        say(f"error: {error}")
        sys.exit(1)
    except SimsplitError as error:
        say(_blame(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        # Such as a name of 300 letters, or a path below a file: any command may be given one.
        say(f"error: cannot use {error.filename}: {error.strerror}")
        sys.exit(2)


if __name__ == "__main__":
    main()
