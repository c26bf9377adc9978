"""`simsplit push` and `pull` publish results and fetch those of others."""

from pathlib import Path
from typing import Annotated

import typer

from simsplit.commands.options import Json, print_json
from simsplit.showing.saying import echo

Repository = Annotated[
    str, typer.Argument(metavar="REPO", help="OWNER/NAME on the Hugging Face hub, or a ./folder.")
]


def push(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run or sweep directory.")],
    repository: Repository,
    private: Annotated[bool, typer.Option(help="Make a new repository private.")] = False,
    as_json: Json = False,
) -> None:
    """Publish the tables of a run or sweep, with a card, on the hub."""
    from simsplit import publishing

    where = publishing.push(run_dir, repository, private=private)
    if as_json:
        print_json({"published": where})
    else:
        echo(f"published: {where}  (simsplit pull {repository} DIR)")


def pull(
    repository: Repository,
    out: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A new folder; default runs/NAME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch published results, and check them before they are read."""
    from simsplit import publishing

    path = publishing.pull(repository, out or Path("runs") / Path(repository).name)
    shown = "compare" if (path / "sweep.json").exists() else "show"
    if as_json:
        print_json({"path": str(path)})
    else:
        echo(f"The results lie in {path}  (simsplit {shown} {path})")
