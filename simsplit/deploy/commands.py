"""The commands of a deployment: `simsplit serve`, `join` and `deploy`."""

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simsplit.errors import RunFailedError, SimsplitError, install_command
from simsplit.showing.saying import echo, end_interrupted, heed_termination, make_console, say

if TYPE_CHECKING:
    from simsplit.scenario import Scenario

ANSWER_S, AWAY_S = 600.0, 600.0
"""Default seconds to wait for one answer, and for a party that is away."""
deploy_app = typer.Typer(
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
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE",
        help="A module or .py file with parts that the scenario names, as in simsplit run.",
    ),
]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for a party that is away.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]


@deploy_app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    *,
    clients: Annotated[int, typer.Option(min=1, help="How many clients there are.")],
    days: Annotated[
        int, typer.Option(min=1, help="Number of days for which certificates are valid.")
    ] = 365,
) -> None:
    """Make a certificate authority, and a key and certificate for each party."""
    require_deploy_packages()
    from simsplit.deploy.keys import make_keys

    for made in make_keys(folder, clients, days):
        echo(str(made))
    echo(f"Give each folder to its own party only; keep {folder / 'ca'} offline, no run needs it")


@deploy_app.command()
def check(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")],
    *,
    client: Annotated[int, typer.Option(min=0, help="Your client's number.")],
    keys: Keys,
    approve: Annotated[Path, typer.Option(help="The scenario file that you approve.")],
    mode: Mode_ = "rehearsal",
    set_: Set = None,
    plugin: Plugin = None,
) -> None:
    """Check whether a client could join: its certificate, scenario and roster, and the server."""
    require_deploy_packages()
    from simsplit.deploy.join_check import check_join

    for line in check_join(address, client, keys, _load_deployable(approve, set_, plugin), mode):
        echo(line)


def serve(
    file: Annotated[Path, typer.Argument(help="A scenario file (YAML), or a shipped one's name.")],
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect to.")],
    keys: Keys,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    mode: Mode_ = "rehearsal",
    set_: Set = None,
    plugin: Plugin = None,
    resume: Resume = False,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds for one answer.")] = ANSWER_S,
    patience: Patience = AWAY_S,
    without: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Start or continue without client N, for good; may be given again.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Train with clients that join from other machines."""
    heed_termination()
    require_deploy_packages()
    from simsplit.deploy.keys import SERVER, load_keys
    from simsplit.deploy.server_run import serve as serve_run
    from simsplit.running.directories import choose_run_directory
    from simsplit.showing.run_output import make_observer
    from simsplit.terminal.printing import print_run

    scenario, proof = _load_deployable(file, set_, plugin), load_keys(keys, SERVER)
    path = choose_run_directory(scenario, out, resume=resume)
    console = make_console(stderr=True)
    again = ["simsplit", "serve", str(file), "--listen", listen, "--keys", str(keys)]
    again += ["--out", str(path), "--mode", mode, "--resume", *_format_flags(set_, plugin)]
    try:
        run = serve_run(
            scenario,
            path,
            proof,
            listen,
            resume=resume,
            mode=mode,
            deadline_s=deadline,
            patience_s=patience,
            without=without or (),
            observers=[make_observer(console, quiet=quiet)],
            say=_ignore if quiet else say,
        )
    except KeyboardInterrupt:
        end_interrupted(f"go on with: {shlex.join(again)}")
    if not quiet:
        print_run(run)
        echo(f"The run is in {path}  ({shlex.join(['simsplit', 'show', str(path)])})")


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
    plugin: Plugin = None,
    resume: Resume = False,
    patience: Patience = AWAY_S,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Take part, as one client, in a run on another machine."""
    heed_termination()
    require_deploy_packages()
    from simsplit.deploy.alignment_site import align_ids
    from simsplit.deploy.connection import join as join_run
    from simsplit.deploy.keys import check_validity, client_name, load_keys
    from simsplit.deploy.site_setup import make_site
    from simsplit.machine import pin_threads
    from simsplit.results.locking import lock

    scenario, proof = _load_deployable(approve, set_, plugin), load_keys(keys, client_name(client))
    # Before the data are loaded, which may take minutes.
    check_validity(proof)
    place = out or scenario.output.root / f"{scenario.name}-{client_name(client)}"
    again = ["simsplit", "join", address, "--client", str(client), "--keys", str(keys)]
    again += ["--approve", str(approve), "--out", str(place), "--mode", mode, "--resume"]
    tell = _ignore if quiet else say
    again += [*(["--data", str(data)] if data else []), *_format_flags(set_, plugin)]
    with lock(place), pin_threads(scenario.threads):
        try:
            common = align_ids(
                *(scenario, client, address, proof, place),
                data=data,
                mode=mode,
                resume=resume,
                patience_s=patience,
                say=tell,
            )
            site = make_site(scenario, client, place, mode, data=data, common=common, resume=resume)
            join_run(address, proof, site, patience_s=patience, say=tell)
        except KeyboardInterrupt:
            end_interrupted(f"go on with: {shlex.join(again)}")
        except RunFailedError as error:
            raise RunFailedError(f"{error}\ngo on with: {shlex.join(again)}") from None
    spent = site.describe_spending()
    tell(
        f"the run is over; this client sent {site.steps} batches{spent}; "
        f"its checkpoints are in {place}"
    )


def require_deploy_packages() -> None:
    """Raise SimsplitError if a package that deployments need is not installed."""
    lacking = [name for name in ("grpc", "cryptography") if find_spec(name) is None]
    if lacking:
        packages = " and ".join(lacking)
        raise SimsplitError(f"a deployment needs {packages}: {install_command('deploy')}")
    # Before gRPC is imported: it logs each failed handshake, and errors say what is wrong.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _load_deployable(
    file: Path, overrides: list[str] | None, plugins: list[str] | None
) -> "Scenario":
    """Load a scenario file with overrides and plugins; raise SimsplitError if it cannot deploy."""
    from simsplit.deploy.terms import refuse_undeployable
    from simsplit.scenario import load_scenario

    pairs = {}
    for override in overrides or ():
        field, equals, value = override.partition("=")
        if not field or not equals:
            raise SimsplitError(f"--set takes FIELD=VALUE, got '{override}'")
        pairs[field] = value
    scenario = load_scenario(file, pairs, plugins or ())
    refuse_undeployable(scenario)
    return scenario


def _format_flags(overrides: list[str] | None, plugins: list[str] | None) -> list[str]:
    """Return overrides and plugins as command-line words, for a command that resumes."""
    given = [*(("--set", each) for each in overrides or ())]
    given += [("--plugin", each) for each in plugins or ()]
    return [word for pair in given for word in pair]


def _ignore(text: str) -> None:
    del text
