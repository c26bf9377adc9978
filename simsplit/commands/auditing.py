"""`simsplit audit` attacks a recorded wire, and says what was read of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simsplit.commands.options import Format, Json, Quiet, hush_if, print_json
from simsplit.commands.table_measuring import read_budget
from simsplit.errors import SimsplitError
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say

if TYPE_CHECKING:
    from simsplit.auditing.audits import Audit

FAILED = 3
"""The exit code of an audit in which more was read than `--fail-above` allows."""

SHOWN = 6
"""Lines on what attackers would need that are printed, those with the fewest things first."""


def audit(
    wire: Annotated[Path, typer.Argument(metavar="WIRE", help="A transcript's folder.")],
    *,
    knows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What the server has. Of texts: model=DIR (a public model), head=N, tail=N (its "
            "layers in head and tail). Of others, the client's network: model=DIR or "
            "FILE.safetensors, factory=FILE.py:NAME (a function that makes it), module=NAME (its "
            "part at the client). pairs=N or WIRE (known inputs); run=RUN (the recorded run).",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Public data: a folder, a file, or python_docs, ..."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only this attack; default: all that can be tried."),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="10m", help="Attack no longer than this.")] = "10m",
    targets: Annotated[int, typer.Option(min=2, help="About how many samples to attack.")] = 64,
    client: Annotated[
        int | None, typer.Option(help="Whose samples; default: most packets.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="The run directory to write.")] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit code 3 if an attack reads more than this share; for CI."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page, too.")] = None,
    quiet: Quiet = False,
    format_: Format = "table",
    as_json: Json = False,
) -> None:
    """Attack a recorded wire, and say what was read of it."""
    heed_termination()
    hush_if(quiet or as_json)
    from simsplit.auditing.audit_page import refuse_other_page, write_audit_page
    from simsplit.auditing.audits import audit as audit_wire
    from simsplit.showing.run_output import count_work

    minutes = read_budget(budget) or 0.0
    if html is not None:
        refuse_other_page(html)
    try:
        with count_work(make_console(stderr=True), "the audit", quiet=quiet or as_json) as progress:
            made = audit_wire(
                wire,
                out,
                knows=_parse_knows(knows or []),
                public=public,
                attacks=attack or (),
                budget=60 * minutes,
                targets=targets,
                client=client,
                seed=seed,
                device=device,
                progress=progress,
            )
    except KeyboardInterrupt:
        end_interrupted("an audit is not resumed; start it again")
    if html is not None:
        write_audit_page(made, html)
    if as_json:
        print_json(made.to_dict())
    elif not quiet:
        _print(made, format_, html)
    if fail_above is not None and made.worst is None:
        say("failed: no attack came to its end, so --fail-above has nothing to judge by")
        raise typer.Exit(FAILED)
    if fail_above is not None and made.share > fail_above:
        say(f"failed: {made.share:.2f} was read, and --fail-above allows {fail_above:g}")
        raise typer.Exit(FAILED)


def _print(made: "Audit", form: Format, html: Path | None) -> None:
    from simsplit.auditing.audit_tables import tabulate_audit
    from simsplit.terminal.printing import print_table

    if form == "table":
        echo(made.verdict)
    print_table(tabulate_audit(made), form)
    if form == "table" and made.wants:
        left = len(made.wants) - SHOWN
        more = [f"{left} lines more: --json"] if left > 0 else []
        lines = [*made.wants[:SHOWN], *more]
        echo("\n  ".join(["not tried; an attacker would need more:", *lines]))
    for note in made.notes:
        say(f"note: {note}")
    for note in made.reference.notes if made.reference else ():
        if note not in made.notes:
            say(f"note, without the defence: {note}")
    echo(f"run directory: {made.run.path}" + (f"; page: {html}" if html else ""))


def _parse_knows(given: list[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            raise SimsplitError(f"--knows takes NAME=VALUE, such as model=DIR, got '{each}'")
        pairs[name] = value
    return pairs
