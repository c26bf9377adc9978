"""A client's site is set up from the owner's data, folder and secret."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simsplit.client_names import ClientNames
from simsplit.data import Prepared, Samples
from simsplit.data.joined_tables import JoinedSource, load_portion
from simsplit.data.partitions import Iid
from simsplit.data.portions import mask_labels
from simsplit.data.preparing import divide
from simsplit.data.texts import TextTable
from simsplit.deploy.site import ClientSite
from simsplit.deploy.terms import Mode
from simsplit.errors import DataError, RunError, ScenarioError
from simsplit.foreign import refuse_link
from simsplit.legs import ClientId
from simsplit.machine import find_device
from simsplit.results import CHECKPOINTS
from simsplit.results.directory import make_folder
from simsplit.scenario import Scenario

SECRET = "secret"
"""The file of the client's secret, in its folder of checkpoints."""


def refuse_unknown_client(scenario: Scenario, client: ClientId) -> None:
    """Raise ScenarioError for the number of a client that the scenario does not have."""
    if client >= (count := scenario.clients.count):
        raise ScenarioError("clients.count", f"got client {client}, allowed are 0 to {count - 1}")


def make_site(
    scenario: Scenario,
    client: ClientId,
    out: Path,
    mode: Mode,
    *,
    data: Path | None = None,
    common: Sequence[str] | None = None,
    resume: bool = False,
) -> ClientSite:
    """Make the site of a client, with its own `data` or its part of the scenario's data.

    `common` are the ids that all parties have, where they were aligned.
    """
    refuse_unknown_client(scenario, client)
    if not resume and (out / CHECKPOINTS).exists():
        raise RunError(
            f"{out} already holds a client's checkpoints; give another --out, or add --resume"
        )
    make_folder(out / CHECKPOINTS)
    secret = load_secret(out) if mode == "private" else None
    device = find_device(scenario.device)
    if data is None and common is None:
        held = scenario.prepare_data()
    else:
        held = load_own_data(scenario, data, client, common)
    if held.portions:
        held = held.of_party(client)  # the site knows nothing of the others' columns
    return ClientSite(
        *(scenario, held, client, out),
        mode=mode,
        secret=secret,
        device=device,
        has_own_data=data is not None,
    )


def load_own_data(
    scenario: Scenario, path: Path | None, client: ClientId, common: Sequence[str] | None = None
) -> Prepared:
    """Load a site's own data from `path`, all for one client; other settings are the scenario's.

    A party without a path has the scenario's file, and of its rows the `common` ones.
    """
    source = scenario.data.source
    if isinstance(source, JoinedSource):
        path = path or source.files[scenario.party_names[client]]
        return _load_own_portion(scenario, source, path, client, common)
    if path is None or "path" not in type(source).model_fields:
        raise ScenarioError(
            "data.source.kind",
            f"got {source.kind}, which has no path; --data is allowed with npz, table, joined, "
            "folder, parquet and text_parquet",
        )
    if not path.exists():
        raise DataError(f"--data: there is no {path.absolute()}")
    there = source.model_copy(update={"path": path})
    # Nothing is divided here: all of the data are this client's, however many others there are.
    config = scenario.data.model_copy(update={"source": there, "partition": Iid(), "even": None})
    alone = scenario.clients.model_copy(update={"count": 1, "names": None})
    update = {"data": config, "clients": alone, "attacks": ()}
    own = scenario.model_copy(update=update).prepare_data()
    everything, nothing = np.arange(len(own.train)), np.arange(0)
    # The others' samples are elsewhere, but clients are numbered alike on all machines.
    parts = [everything if n == client else nothing for n in range(scenario.clients.count)]
    own = replace(own, parts=parts)
    if scenario.clients.names is not None:
        own = replace(own, client_names=ClientNames(scenario.clients.names))
    return scenario.plant(own) if client == scenario.targets.client else own


def _load_own_portion(
    scenario: Scenario,
    source: JoinedSource,
    path: Path,
    client: ClientId,
    common: Sequence[str] | None,
) -> Prepared:
    """Load a party's own columns; raise ScenarioError for draws that need all parties' labels."""
    data = scenario.data
    for name in ("classes", "train_samples", "test_samples", "validation", "auxiliary"):
        if getattr(data, name):
            what = "draws rows by their labels, which one party has; with --data leave it out"
            raise ScenarioError(f"data.{name}", what)
    if not path.exists():
        raise DataError(f"--data: there is no {path.absolute()}")
    has_labels = client == scenario.label_party
    party = scenario.party_names[client]
    made = load_portion(source, party, path, common, has_labels=has_labels)
    plain = data.model_copy(update={"partition": Iid()})
    own = divide(plain, made, 1, scenario.seed, None, mixes=False, read_public=_read_nothing)
    parts = [np.arange(len(own.train))] * scenario.clients.count
    # The others' shapes are not known here, and are not needed for this party's head.
    shapes = (own.info.shape,) * scenario.clients.count
    names, info = ClientNames(scenario.party_names), replace(own.info, parts=shapes)
    own = replace(own, parts=parts, info=info, client_names=names)
    if has_labels:
        return own
    train, test = mask_labels(own.train), mask_labels(own.test)
    return replace(own, info=replace(info, shares=()), train=train, test=test)


def _read_nothing(source: TextTable, reader: object) -> Samples:
    """Stand for public texts, which tables have none of."""
    raise AssertionError(f"tables have no public texts, got {source.kind_name}")


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
