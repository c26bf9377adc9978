"""Runs whose clients live on Ray hosts, wherever a test wants them."""

import copy
from collections.abc import Sequence
from pathlib import Path

from simsplit.assembly import Assembler, Assembly, CrewRecipe
from simsplit.engine.ray_pool import Hosts, RayPool
from simsplit.experiment import Experiment
from simsplit.progress import Observer, Silent
from simsplit.scenario import Scenario


class Placed(Experiment):
    """A run whose clients live where the test says."""

    where: Sequence[int] = ()

    def _assemble(self, assembler: Assembler) -> Assembly:
        assert self.hosts is not None
        recipe = CrewRecipe.of(self.scenario, self.data, "cpu")
        return assembler.assemble(RayPool(self.hosts, recipe, self.where, self.device))


def on_hosts(
    given: Scenario, path: Path, hosts: Hosts, observer: Observer | None = None
) -> Experiment:
    """A run, not started, its clients dealt out as the simulator does."""
    hosts.revive()  # whatever a test before this one did to them
    return Experiment(given, path, observer or Silent(), None, hosts)


def placed_on(given: Scenario, path: Path, hosts: Hosts, where: Sequence[int]) -> Experiment:
    """A run, not started: a host for each client."""
    hosts.revive()
    made = type("PlacedThere", (Placed,), {"where": where})
    return made(given, path, Silent(), None, first(hosts, max(where) + 1))


def first(hosts: Hosts, count: int) -> Hosts:
    """Some of the hosts, as if there were no others."""
    some = copy.copy(hosts)
    some.actors = hosts.actors[:count]
    return some
