"""`simsplit transcribe` makes a transcript of arrays that another system exported."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from simsplit.commands.options import Json, print_json
from simsplit.showing.saying import echo

_ARRAY = "FILE[:NAME]"
Array = Annotated[
    str | None,
    typer.Option(metavar=_ARRAY, help="An array with a row for each sample (.npy, .safetensors)."),
]


def transcribe(
    out: Annotated[Path, typer.Argument(metavar="WIRE", help="The new transcript's folder.")],
    *,
    smashed: Array = None,
    features: Array = None,
    features_grad: Array = None,
    smashed_grad: Array = None,
    inputs: Annotated[
        str | None, typer.Option(metavar=_ARRAY, help="The truth: what the head was given.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar=_ARRAY, help="The truth: each sample's label.")
    ] = None,
    sends_labels: Annotated[
        bool, typer.Option("--sends-labels", help="The labels cross to the server, too.")
    ] = False,
    modality: Annotated[
        Literal["images", "texts", "table", "vectors"] | None,
        typer.Option(help="The kind of samples; default: as the inputs seem to be."),
    ] = None,
    content: Annotated[
        list[str] | None,
        typer.Option(metavar="LEG=WHAT", help="Such as smashed=embeddings: cut, gradients, other."),
    ] = None,
    mean: Annotated[
        list[float] | None, typer.Option(help="Of images, for each channel: what was subtracted.")
    ] = None,
    std: Annotated[
        list[float] | None, typer.Option(help="Of images, for each channel: the divisor.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a packet.")] = 64,
    client: Annotated[int, typer.Option(min=0, help="The client that sent them.")] = 0,
    most: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The transcript's largest size, as 2GiB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a transcript from arrays of another system, to audit it."""
    from simsplit.wires.transcribing import transcribe as write

    pairs = (each.partition("=") for each in content or [])
    contents: dict[str, Any] = {leg: what for leg, _, what in pairs}
    wire = write(
        out,
        smashed=smashed,
        features=features,
        features_grad=features_grad,
        smashed_grad=smashed_grad,
        inputs=inputs,
        labels=labels,
        sends_labels=sends_labels,
        modality=modality,
        content=contents,
        mean=mean or (),
        std=std or (),
        batch_size=batch_size,
        client=client,
        most=most,
    )
    summary, facts = wire.summarise(), wire.facts
    about = {
        "transcript": str(out),
        "modality": facts.modality,
        "packets": dict(summary.by_leg),
        "truth": summary.has_truth,
        "status": facts.status,
        "ended": facts.ended,
    }
    if as_json:
        print_json(about)
        return
    legs = ", ".join(f"{leg} ({count:,})" for leg, count in summary.by_leg.items())
    echo(f"{out}: {facts.modality}; packets: {legs}; truth: {'yes' if summary.has_truth else 'no'}")
    if facts.ended:
        echo(f"packets are missing at the end: {facts.ended}")
