"""`simsplit explain` says what a kind of error means, and `doctor` what this machine has."""

from typing import Annotated

import typer

from simsplit.errors import SimsplitError, suggest
from simsplit.showing.saying import echo


def explain(
    name: Annotated[
        str | None, typer.Argument(metavar="[E-...]", help="An error's name; default: all names.")
    ] = None,
) -> None:
    """Say what causes a kind of error, and what cures it."""
    from simsplit.terminal.error_kinds import KINDS, format_kind

    kinds = {kind.name: kind for kind in KINDS}
    if name is None:
        echo("\n".join(f"{kind.name:<15}{kind.about}" for kind in KINDS))
        return
    if (kind := kinds.get(name.upper())) is None:
        known = suggest(name.upper(), kinds) or ","
        raise SimsplitError(f"explain: unknown '{name}'{known} allowed: {', '.join(kinds)}")
    echo(format_kind(kind))


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show versions, machine, caches, and what features lack."""
    from simsplit.commands.options import print_json
    from simsplit.terminal.examining import examine, format_examination

    facts = examine()
    if as_json:
        print_json(facts)
        return
    echo(format_examination(facts))
