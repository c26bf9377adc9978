"""`simsplit attack` attacks a finished run, and `chat` shows what the server reads of a text."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from simsplit.commands import options
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say


def attack(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    kind: Annotated[str, typer.Option(help="unsplit, whitebox, ...: simsplit list attacks.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="A field of the attack, or of its targets."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted attack.")
    ] = False,
    plugin: options.Plugin = None,
    quiet: options.Quiet = False,
    format_: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Attack a finished run through what its clients send."""
    heed_termination()
    options.hush_if(quiet or as_json)
    from simsplit.attacking.finished import attack as attack_finished
    from simsplit.showing.run_output import count_work
    from simsplit.terminal.documents import document_attack
    from simsplit.terminal.printing import print_attack

    changes = options.parse_pairs(set_ or [])
    name, known = changes.get("name", kind), options.load_plugins(plugin)
    notes: list[str] = []
    try:
        with count_work(make_console(stderr=True), name, quiet=quiet or as_json) as progress:
            run = attack_finished(
                run_dir,
                kind,
                changes,
                resume=resume,
                progress=progress,
                warn=notes.append,
                plugins=known,
            )
    except KeyboardInterrupt:
        again = ["simsplit", "attack", str(run_dir), "--kind", kind, "--resume"]
        again += [
            *options.make_flags("--set", set_ or []),
            *options.make_flags("--plugin", plugin or []),
        ]
        end_interrupted(f"go on with: {shlex.join(again)}")
    for note in notes:  # below the progress, which is gone
        say(f"warning: {note}")
    if as_json:
        options.print_json(document_attack(run, name))
    elif not quiet:
        print_attack(run, name, format_)


def chat(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    prompt: Annotated[
        str | None, typer.Option(help="One prompt; without it they are asked for, one by one.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens per text, at most.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="Draw tokens; default: always the likeliest.")
    ] = None,
    client: Annotated[str, typer.Option(help="Whose head and tail, by number or name.")] = "0",
    plugin: options.Plugin = None,
    format_: options.Format = "table",
) -> None:
    """Write through the cut of a finished run."""
    from simsplit.evaluation.writing import Sampling
    from simsplit.results import Run
    from simsplit.terminal.chatting import Chat
    from simsplit.terminal.printing import print_table

    number = Run.load(run_dir).client_names.find(client)
    made = Chat(run_dir, number, options.load_plugins(plugin))
    sampling = None if temperature is None else Sampling(temperature=temperature)
    asked = [prompt] if prompt is not None else iter(lambda: typer.prompt("prompt", ""), "")
    for each in asked:
        written = made.write(each, tokens, sampling)
        echo(written.text)
        if written.read is not None:
            echo(f"the server reads: {written.read}")
        print_table(written.tabulate_bytes(), format_)
