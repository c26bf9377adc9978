"""The command line. Whatever is heavy is imported by the command that needs it, never before."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer
import typer.core

import simsplit
from simsplit.commands import (
    attacking,
    auditing,
    benching,
    boards,
    card_checking,
    challenges,
    clients,
    evidence,
    helping,
    plan_command,
    publishing,
    results,
    run_commands,
    scenarios,
    transcripts,
)
from simsplit.commands.field_options import CommandOfFields, takes_fields
from simsplit.deploy import commands as deployment
from simsplit.errors import PluginError, RunFailedError, ScenarioError, SimsplitError
from simsplit.showing.saying import echo, say
from simsplit.terminal.kept_answers import PRINTING, answer_once

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
        echo(f"simsplit {simsplit.__version__}")
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
    "run": run_commands.run,
    "sweep": run_commands.sweep,
    "validate": scenarios.validate,
    "plan": plan_command.plan,
    "new": scenarios.new,
    "schema": scenarios.schema,
    "list": scenarios.list_,
    "cite": scenarios.cite,
    "show": results.show_,
    "clients": clients.clients,
    "watch": run_commands.watch_,
    "compare": results.compare,
    "rank": results.rank,
    "report": results.report,
    "papers": evidence.papers,
    "reproduce": evidence.reproduce,
    "board": boards.board,
    "card": card_checking.card,
    "attack": attacking.attack,
    "audit": auditing.audit,
    "chat": attacking.chat,
    "transcribe": transcripts.transcribe,
    "export": results.export,
    "push": publishing.push,
    "pull": publishing.pull,
    "pretrain": benching.pretrain,
    "bench": benching.bench,
    "doctor": helping.doctor,
    "explain": helping.explain,
    "serve": deployment.serve,
    "join": deployment.join,
}
for _name, _command in _COMMANDS.items():
    app.command(name=_name, cls=CommandOfFields if takes_fields(_command) else None)(_command)
app.add_typer(deployment.deploy_app, name="deploy")
app.add_typer(challenges.challenge_app, name="challenge")


def _blame(error: SimsplitError) -> str:
    """Format an error as one line, or several mistakes below one heading."""
    problems = error.problems if isinstance(error, ScenarioError) else [error]
    if len(problems) == 1:
        return _report(error)
    heading = f"error: {len(problems)} mistakes{_refer(problems[0])}"
    return "\n  ".join([heading, *map(str, problems)])


def _report(error: SimsplitError) -> str:
    """Format an error; where it is explained stands first, since its last line may be a command."""
    first, *others = str(error).splitlines() or [""]
    return "\n".join([f"error: {first}{_refer(error)}", *others])


def _refer(error: Exception) -> str:
    """Return where an error is explained."""
    from simsplit.terminal.error_kinds import find_kind

    return f" (see simsplit explain {find_kind(error).name})"


def _run_app() -> None:
    """Run the command; raise PluginError if a plugin would end the program."""
    try:
        if sys.argv[1:2] and sys.argv[1] in PRINTING:
            answer_once(sys.argv[1:], partial(app, prog_name="simsplit"))
        else:
            app(prog_name="simsplit")
    except SystemExit as error:
        # Every command ends with this exception. Plugins are heavy to import, where none is.
        plugins = sys.modules.get("simsplit.plugins.tracing")
        fault = plugins.find_fault(error) if plugins else None
        if fault is None:
            raise
        raise PluginError(fault) from error


def main() -> None:
    """Run the command line; errors that a user can mend become a message and exit code 2."""
    try:
        _run_app()
    except RunFailedError as error:
        say(_report(error))
        sys.exit(1)
    except SimsplitError as error:
        say(_blame(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        # Such as a name of 300 letters, or a path below a file: any command may be given one.
        say(f"error: cannot use {error.filename}: {error.strerror}{_refer(error)}")
        sys.exit(2)


if __name__ == "__main__":
    main()
