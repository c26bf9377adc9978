"""A client's site is set up from the owner's data, folder and secret."""

import os
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np

from simsplit.data import Prepared
from simsplit.data.partitions import Iid
from simsplit.deploy.site import ClientSite
from simsplit.deploy.terms import Mode
from simsplit.errors import DataError, RunError, ScenarioError
from simsplit.foreign import refuse_link
from simsplit.machine import find_device
from simsplit.packets import ClientId
from simsplit.results import CHECKPOINTS
from simsplit.results.directory import make_folder
from simsplit.scenario import Scenario

SECRET = "secret"
"""The file of the client's secret, in its folder of checkpoints."""


def make_site(
    scenario: Scenario,
    client: ClientId,
    out: Path,
    mode: Mode,
    *,
    data: Path | None = None,
    resume: bool = False,
) -> ClientSite:
    """Make the site of a client, with its own `data` or its part of the scenario's data."""
    if client >= scenario.clients.count:
        raise ScenarioError(
            "clients.count", f"got client {client}, allowed are 0 to {scenario.clients.count - 1}"
        )
    if not resume and (out / CHECKPOINTS).exists():
        raise RunError(
            f"{out} already holds a client's checkpoints; give another --out, or add --resume"
        )
    make_folder(out / CHECKPOINTS)
    secret = load_secret(out) if mode == "private" else None
    device = find_device(scenario.device)
    held = scenario.prepare_data() if data is None else load_own_data(scenario, data, client)
    return ClientSite(scenario, held, client, out, mode=mode, secret=secret, device=device)


def load_own_data(scenario: Scenario, path: Path, client: ClientId) -> Prepared:
    """Load a site's own data from `path`, all for one client; other settings are the scenario's."""
    source = scenario.data.source
    if "path" not in type(source).model_fields:
        raise ScenarioError(
            "data.source.kind",
            f"got {source.kind}, which has no path; --data is allowed with npz, table, folder, "
            "parquet and text_parquet",
        )
    if not path.exists():
        raise DataError(f"--data: there is no {path.absolute()}")
    there = source.model_copy(update={"path": path})
    # Nothing is divided here: all of the data are this client's.
    config = scenario.data.model_copy(update={"source": there, "partition": Iid()})
    own = scenario.model_copy(update={"data": config}).prepare_data()
    everything, nothing = np.arange(len(own.train)), np.arange(0)
    # The others' samples are elsewhere, but clients are numbered alike on all machines.
    parts = [everything if n == client else nothing for n in range(scenario.clients.count)]
    return replace(own, parts=parts)


def load_secret(folder: Path) -> int:
    """Load the secret that seeds a client's draws; make it on first use.

    Only the owner may read it: the server could repeat the client's random draws by it.
    """
    file = folder / SECRET
    refuse_link(file)
    if not file.exists():
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(str(secrets.randbits(128)))
    return int(file.read_text(encoding="ascii"))
