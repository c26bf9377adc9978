"""`simsplit deploy check`: whether a client could join, without joining."""

from collections.abc import Iterator
from pathlib import Path

from simsplit.deploy.joining import channel_to
from simsplit.deploy.keys import ROSTER, Keys, client_name, keys_of, named, roster_of, valid_until
from simsplit.deploy.tensors import LEAST_BYTES
from simsplit.deploy.terms import Mode, digest_of, facts
from simsplit.errors import RunError, RunFailedError
from simsplit.packets import ClientId
from simsplit.scenario import Scenario

REACH_S = 10.0


def checked(
    address: str, client: ClientId, folder: Path, scenario: Scenario, mode: Mode
) -> Iterator[str]:
    """What was found, line by line; RunError at what is not right."""
    keys = keys_of(folder, client_name(client))
    until = valid_until(keys)
    if (name := named(keys)) != client_name(client):
        raise RunError(f"the certificate is of {name}, not of {client_name(client)}")
    yield f"certificate: {name}, valid until {until:%Y-%m-%d %H:%M} UTC"
    yield f"scenario: {scenario.name}, {digest_of(scenario, mode)[:16]} ({mode})"
    yield "machine: " + ", ".join(f"{name} {value}" for name, value in facts().items())
    yield _roster(scenario, keys)
    yield _reached(address, keys)


def _roster(scenario: Scenario, keys: Keys) -> str:
    """What clients know each other by."""
    names = [client_name(client) for client in roster_of(keys)]
    count = scenario.clients.count
    if missing := [name for name in map(client_name, range(count)) if name not in names]:
        raise RunError(f"{ROSTER} has no {missing[0]}; the scenario has {count} clients")
    return f"roster: {len(names)} clients, signed by this deployment's authority"


def _reached(address: str, keys: Keys) -> str:
    import grpc

    with channel_to(address, keys, LEAST_BYTES) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=REACH_S)
        except grpc.FutureTimeoutError:
            raise RunFailedError(
                f"no server of this deployment answers at {address} within {REACH_S:g} s"
            ) from None
    return f"server: answers at {address}, with a certificate of this deployment"
