"""The commands of a deployment: `simsplit serve`, `join` and `deploy`."""

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simsplit.errors import RunFailedError, SimsplitError, install_command

if TYPE_CHECKING:
    from simsplit.scenario import Scenario

ANSWER_S, AWAY_S = 600.0, 600.0
keeper = typer.Typer(
    help="Keys for a deployment, and a check of one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Keys = Annotated[Path, typer.Option("--keys", help="Folder of `simsplit deploy keys`.")]
Mode_ = Annotated[
    Literal["rehearsal", "private"],
    typer.Option(
        help="rehearsal: all draws by the scenario's seed, as simulated. private: a client draws "
        "by a secret of its own."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, as in simsplit run."),
]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for who is away.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]


@keeper.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to be made.")],
    *,
    clients: Annotated[int, typer.Option(min=1, help="How many clients there are.")],
    days: Annotated[int, typer.Option(min=1, help="For how long certificates are valid.")] = 365,
) -> None:
    """Make a certificate authority, and a key and certificate for each party."""
    refuse_lacking()
    from simsplit.deploy.keys import make_keys

    for made in make_keys(folder, clients, days):
        typer.echo(str(made))
    typer.echo(
        f"Bring each folder to its party, and nobody else's; {folder / 'ca'} can be put away"
    )


@keeper.command()
def check(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")],
    *,
    client: Annotated[int, typer.Option(min=0, help="Your client's number.")],
    keys: Keys,
    approve: Annotated[Path, typer.Option(help="The scenario file that you approve.")],
    mode: Mode_ = "rehearsal",
    set_: Set = None,
) -> None:
    """Say whether a client could join: certificate, scenario, and whether the server answers."""
    from simsplit.deploy.checking import checked

    for line in checked(address, client, keys, _scenario(approve, set_), mode):
        typer.echo(line)


def serve(
    file: Annotated[Path, typer.Argument(help="A scenario file (YAML), or a shipped one's name.")],
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect to.")],
    keys: Keys,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    mode: Mode_ = "rehearsal",
    set_: Set = None,
    resume: Resume = False,
    deadline: Annotated[float, typer.Option(help="Seconds for one answer.")] = ANSWER_S,
    patience: Patience = AWAY_S,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Train with clients on other machines, who join it."""
    from rich.console import Console

    from simsplit.deploy.keys import SERVER, keys_of
    from simsplit.deploy.serving import serve as served
    from simsplit.running.directories import choose_run_directory
    from simsplit.terminal.printing import print_run
    from simsplit.terminal.runs import observer_for

    scenario, proof = _scenario(file, set_), keys_of(keys, SERVER)
    path = choose_run_directory(scenario, out, resume=resume)
    console = Console(stderr=True)
    again = ["simsplit", "serve", str(file), "--listen", listen, "--keys", str(keys)]
    again += ["--out", str(path), "--mode", mode, "--resume", *_flags(set_)]
    try:
        run = served(
            scenario,
            path,
            proof,
            listen,
            resume=resume,
            mode=mode,
            deadline_s=deadline,
            patience_s=patience,
            observers=[observer_for(console, quiet=quiet)],
            say=_quiet if quiet else _say,
        )
    except KeyboardInterrupt:
        _say(f"\ninterrupted; go on with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    if not quiet:
        print_run(run)
        typer.echo(f"The run lies in {path}  ({shlex.join(['simsplit', 'show', str(path)])})")


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")],
    *,
    client: Annotated[int, typer.Option(min=0, help="Your client's number.")],
    keys: Keys,
    approve: Annotated[Path, typer.Option(help="The scenario file that you approve.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of checkpoints; default runs/NAME-client-I.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your own data, in place of data.source.path; default: the scenario's."),
    ] = None,
    mode: Mode_ = "rehearsal",
    set_: Set = None,
    resume: Resume = False,
    patience: Patience = AWAY_S,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Be a client of a run that another machine serves."""
    from simsplit.deploy.joining import join as joined
    from simsplit.deploy.keys import client_name, keys_of, valid_until
    from simsplit.deploy.sites import site_of
    from simsplit.machine import pinned_threads

    scenario, proof = _scenario(approve, set_), keys_of(keys, client_name(client))
    valid_until(proof)
    place = out or scenario.output.root / f"{scenario.name}-{client_name(client)}"
    again = ["simsplit", "join", address, "--client", str(client), "--keys", str(keys)]
    again += ["--approve", str(approve), "--out", str(place), "--mode", mode, "--resume"]
    said = _quiet if quiet else _say
    again += ["--data", str(data)] if data else []
    with pinned_threads(scenario.threads):
        site = site_of(scenario, client, place, mode, data=data, resume=resume)
        try:
            joined(address, proof, site, patience_s=patience, say=said)
        except KeyboardInterrupt:
            _say(f"\ninterrupted; go on with: {shlex.join([*again, *_flags(set_)])}")
            raise typer.Exit(130) from None
        except RunFailedError as error:
            raise RunFailedError(f"{error}\ngo on with: {shlex.join(again)}") from None
    said(f"the run is over; {site.steps} batches were sent, checkpoints lie in {place}")


def refuse_lacking() -> None:
    """SimsplitError without the packages that this takes."""
    lacking = [name for name in ("grpc", "cryptography") if find_spec(name) is None]
    if lacking:
        packages = " and ".join(lacking)
        raise SimsplitError(f"a deployment takes {packages}: {install_command('deploy')}")


def _scenario(file: Path, overrides: list[str] | None) -> "Scenario":
    refuse_lacking()
    from simsplit.deploy.terms import refuse_undeployable
    from simsplit.scenario import load_scenario

    pairs = {}
    for override in overrides or ():
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    scenario = load_scenario(file, pairs)
    refuse_undeployable(scenario)
    return scenario


def _flags(overrides: list[str] | None) -> list[str]:
    return [word for value in overrides or () for word in ("--set", value)]


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _quiet(text: str) -> None:
    del text
