"""A recipe is sent to another process, which builds some of a run's clients from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from simsplit.assembly.assembler import Assembler
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool
from simsplit.held import hold
from simsplit.packets import ClientId
from simsplit.plugins import gather_again
from simsplit.scenario import Scenario
from simsplit.scenario.own import collect_held


@dataclass(frozen=True)
class HostRecipe:
    """Everything that another process needs to build some of a run's clients."""

    scenario: Scenario
    data: Prepared
    device: str
    held: Mapping[str, object]
    """Objects that the user passed from Python, by digest."""

    @classmethod
    def of(cls, scenario: Scenario, data: Prepared, device: str) -> "HostRecipe":
        """Return the recipe for hosts that compute on `device`."""
        return cls(scenario, data, device, collect_held(scenario.model))

    @property
    def imports(self) -> Callable[[], object] | None:
        """A call that imports plugins on a host, to be made before the recipe is sent; None if
        there are no plugins.
        """
        away = tuple(origin for origin in self.scenario.plugins.origins if origin.portable)
        return partial(gather_again, away) if away else None

    def build(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Build these clients in their state before training."""
        hold(self.held)
        assembler = Assembler(self.scenario, self.data, torch.device(self.device))
        pool = assembler.make_pool(numbers)
        if self.scenario.aggregation.kind == "splitfed_v1":
            pool.workshop = assembler.build_workshop(assembler.build_exchange(pool))
        return pool
