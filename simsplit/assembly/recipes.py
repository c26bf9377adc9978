"""What travels to another process so that it can build some of a run's clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from simsplit.assembly.assembler import Assembler
from simsplit.data import Prepared
from simsplit.engine.pool import InlinePool
from simsplit.held import hold
from simsplit.packets import ClientId
from simsplit.plugins import gathered_again
from simsplit.scenario import Scenario
from simsplit.scenario.own import collect_held


@dataclass(frozen=True)
class HostRecipe:
    """All that another process needs to build some of a run's clients; it travels there."""

    scenario: Scenario
    data: Prepared
    device: str
    held: Mapping[str, object]
    """What was passed from Python, by digest."""

    @classmethod
    def of(cls, scenario: Scenario, data: Prepared, device: str) -> "HostRecipe":
        """For hosts that compute on `device`."""
        return cls(scenario, data, device, collect_held(scenario.model))

    @property
    def imports(self) -> Callable[[], object] | None:
        """What a host has to do before it is sent this; None where all its parts ship."""
        away = tuple(origin for origin in self.scenario.plugins.origins if origin.portable)
        return partial(gathered_again, away) if away else None

    def build(self, numbers: Sequence[ClientId]) -> InlinePool:
        """Build these clients as they are before training."""
        hold(self.held)
        assembler = Assembler(self.scenario, self.data, torch.device(self.device))
        pool = assembler.make_pool(numbers)
        if self.scenario.aggregation.kind == "splitfed_v1":
            pool.workshop = assembler.workshop(assembler.exchange(pool))
        return pool
