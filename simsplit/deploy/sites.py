"""A client's site, made ready: its data, its folder and its secret."""

import os
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np

from simsplit.data import Prepared
from simsplit.data.partitions import Iid
from simsplit.deploy.site import Site
from simsplit.deploy.terms import Mode
from simsplit.errors import DataError, RunError, ScenarioError
from simsplit.machine import device_of
from simsplit.packets import ClientId
from simsplit.results import CHECKPOINTS
from simsplit.scenario import Scenario

SECRET = "secret"


def site_of(
    scenario: Scenario,
    client: ClientId,
    out: Path,
    mode: Mode,
    *,
    data: Path | None = None,
    resume: bool = False,
) -> Site:
    """A client of the scenario: with all of its own `data`, or its part of the scenario's."""
    if client >= scenario.clients.count:
        raise ScenarioError(
            "clients.count", f"there are {scenario.clients.count} clients, so none is {client}"
        )
    if not resume and (out / CHECKPOINTS).exists():
        raise RunError(
            f"{out} already holds a client's checkpoints; give another --out, or --resume to go on"
        )
    (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    secret = secret_in(out) if mode == "private" else None
    device = device_of(scenario.device)
    held = scenario.prepared() if data is None else own_data(scenario, data, client)
    return Site(scenario, held, client, out, mode=mode, secret=secret, device=device)


def own_data(scenario: Scenario, path: Path, client: ClientId) -> Prepared:
    """A site's own data, all of them one client's; read as the scenario says, from elsewhere."""
    source = scenario.data.source
    if "path" not in type(source).model_fields:
        raise ScenarioError(
            "data.source.kind",
            f"got {source.kind}, which is read from no path; --data is for npz, table, folder, "
            "parquet and text_parquet",
        )
    if not path.exists():
        raise DataError(f"--data: there is no {path.absolute()}")
    there = source.model_copy(update={"path": path})
    config = scenario.data.model_copy(update={"source": there, "partition": Iid()})
    own = scenario.model_copy(update={"data": config}).prepared()
    everything, nothing = np.arange(len(own.train)), np.arange(0)
    parts = [everything if n == client else nothing for n in range(scenario.clients.count)]
    return replace(own, parts=parts)


def secret_in(folder: Path) -> int:
    """The secret that a client draws by, made when it is first asked for."""
    file = folder / SECRET
    if not file.exists():
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(str(secrets.randbits(128)))
    return int(file.read_text(encoding="ascii"))
