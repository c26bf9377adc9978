"""`simsplit challenge` publishes a transcript without its truth, and scores guesses of it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from simsplit.commands.options import Json, print_json
from simsplit.showing.saying import echo

challenge_app = typer.Typer(
    help="Let strangers attack a defence, and score their guesses.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)


@challenge_app.command("make")
def make(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run with a transcript, or a transcript.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The challenge's new folder, to be published.")],
    as_json: Json = False,
) -> None:
    """Write a transcript without its truth, and a sealed truth beside it."""
    from simsplit.attacking.sealed_challenges import SEALED, make_challenge

    facts = make_challenge(run, out)
    kept = out.with_name(out.name + SEALED)
    if as_json:
        print_json({"challenge": str(out), "truth": str(kept), **facts.model_dump(mode="json")})
        return
    echo(f"Publish {out}: {facts.samples:,} samples; guess their {' or '.join(facts.has)}")
    echo(f"Keep {kept}: the truth, and the key of the digest {facts.digest}")


@challenge_app.command("score")
def score(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A challenge's folder.")],
    guesses: Annotated[
        str,
        typer.Argument(metavar="GUESSES", help="A row for each id, in order (.npy, .safetensors)."),
    ],
    *,
    truth: Annotated[
        Path | None, typer.Option(help="The sealed truth; default: beside the challenge.")
    ] = None,
    what: Annotated[
        Literal["inputs", "labels"] | None, typer.Option(help="What is guessed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score guesses of a challenge, beside a guess that needs no attack."""
    from simsplit.attacking.sealed_challenges import score_challenge

    scored = score_challenge(folder, guesses, truth, what)
    if as_json:
        print_json(asdict(scored))
        return
    between = f" ({scored.interval[0]:.3f} to {scored.interval[1]:.3f})" if scored.interval else ""
    echo(
        f"{scored.what}: {scored.figure} {scored.value:.3f}{between} over {scored.samples:,} "
        f"samples; a guess without an attack: {scored.floor:.3f}"
    )
