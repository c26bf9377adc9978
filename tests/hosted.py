"""Runs whose clients live on Ray hosts, wherever a test wants them."""

import copy
from collections.abc import Sequence
from pathlib import Path

from simsplit.engine.ray_pool import Hosts
from simsplit.experiment import Experiment
from simsplit.progress import Observer
from simsplit.scenario import Scenario


def on_hosts(given: Scenario, path: Path, hosts: Hosts, *observers: Observer) -> Experiment:
    """A run, not started, its clients dealt out as the simulator does."""
    hosts.revive()  # whatever a test before this one did to them
    return Experiment(given, path, observers, None, hosts)


def placed_on(given: Scenario, path: Path, hosts: Hosts, where: Sequence[int]) -> Experiment:
    """A run, not started: a host for each client."""
    hosts.revive()
    some = first(hosts, max(where) + 1)
    some.placed = lambda samples: list(where)  # type: ignore[method-assign]
    return Experiment(given, path, (), None, some)


def first(hosts: Hosts, count: int) -> Hosts:
    """Some of the hosts, as if there were no others."""
    some = copy.copy(hosts)
    some.actors = hosts.actors[:count]
    return some
