"""Runs whose clients live on Ray hosts, wherever a test wants them."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from simsplit.engine.engine_config import HostsConfig
from simsplit.engine.ray_pool import Hosts, hosts_for
from simsplit.experiment import Experiment
from simsplit.progress import Observer
from simsplit.scenario import Scenario


class SharedHosts:
    """Three hosts in a Ray of this process, started when they are first needed."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._hosts: Hosts | None = None

    def start(self) -> Hosts:
        if self._hosts is None:
            self._hosts = self._open.enter_context(hosts_for(HostsConfig(), 3, 2**28))
        return self._hosts

    def end(self) -> None:
        self._open.close()
        self._hosts = None


def on_hosts(given: Scenario, path: Path, hosts: Hosts, *observers: Observer) -> Experiment:
    """Build a run without starting it, with clients dealt out as the simulator does."""
    hosts.revive()  # whatever a test before this one did to them
    return Experiment(given, path, observers, None, hosts)


def place_on(given: Scenario, path: Path, hosts: Hosts, where: Sequence[int]) -> Experiment:
    """Build a run without starting it, with a host for each client."""
    hosts.revive()
    some = first(hosts, max(where) + 1)
    some.placed = lambda samples: list(where)  # type: ignore[method-assign]
    return Experiment(given, path, (), None, some)


def first(hosts: Hosts, count: int) -> Hosts:
    """Return some of the hosts, as if there were no others."""
    some = copy.copy(hosts)
    some.actors = hosts.actors[:count]
    return some
