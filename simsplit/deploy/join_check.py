"""`simsplit deploy check` checks whether a client could join, without joining.

Owners find wrong keys, scenarios and addresses before all parties meet for a run.
"""

from collections.abc import Iterator
from pathlib import Path

from simsplit.deploy.alignment import require_psi
from simsplit.deploy.connection import open_channel
from simsplit.deploy.frames import LEAST_BYTES
from simsplit.deploy.keys import (
    ROSTER,
    Keys,
    check_validity,
    client_name,
    load_keys,
    read_owner,
    read_roster,
)
from simsplit.deploy.site_setup import refuse_unknown_client
from simsplit.deploy.terms import Mode, describe_machine, digest_terms
from simsplit.errors import RunError, RunFailedError
from simsplit.legs import ClientId
from simsplit.machine import find_device
from simsplit.scenario import Scenario

REACH_S = 10.0
"""Seconds to wait for the server's answer."""


def check_join(
    address: str, client: ClientId, folder: Path, scenario: Scenario, mode: Mode
) -> Iterator[str]:
    """Yield one line for each check that passes; raise an error at the first that fails."""
    refuse_unknown_client(scenario, client)
    keys = load_keys(folder, client_name(client))
    until = check_validity(keys)
    if (name := read_owner(keys)) != client_name(client):
        raise RunError(f"the certificate belongs to {name}, not to {client_name(client)}")
    # One line after the other, so that what was right is on the screen when a check fails.
    yield f"certificate: {name}, valid until {until:%Y-%m-%d %H:%M} UTC"
    yield f"scenario: {scenario.name}, {digest_terms(scenario, mode)[:16]} ({mode})"
    if scenario.data.aligns:
        require_psi()
        yield "alignment: openmined-psi is installed"
    facts = describe_machine(find_device(scenario.device))
    yield "machine: " + ", ".join(f"{name} {value}" for name, value in facts.items())
    yield _check_roster(scenario, keys)
    yield _check_server(address, keys)


def _check_roster(scenario: Scenario, keys: Keys) -> str:
    """Describe the roster, by which clients know each other; raise RunError if it lacks one."""
    names = [client_name(client) for client in read_roster(keys)]
    count = scenario.clients.count
    if missing := [name for name in map(client_name, range(count)) if name not in names]:
        raise RunError(f"{ROSTER} has no {missing[0]}; the scenario has {count} clients")
    return f"roster: {len(names)} clients, signed by this deployment's authority"


def _check_server(address: str, keys: Keys) -> str:
    """Connect to the server and describe it; raise RunFailedError if it does not answer."""
    import grpc

    with open_channel(address, keys, LEAST_BYTES) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=REACH_S)
        except grpc.FutureTimeoutError:
            raise RunFailedError(
                f"no server of this deployment answers at {address} within {REACH_S:g} s"
            ) from None
    return f"server: answers at {address}, with a certificate of this deployment"
