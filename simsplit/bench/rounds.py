"""Benches time whole rounds of a scenario, inline or on hosts, without tables or checkpoints."""

import time
from dataclasses import replace
from functools import partial

import torch

from simsplit.assembly import Assembler, HostRecipe
from simsplit.data import Prepared
from simsplit.engine.pool import Places
from simsplit.parties.calls import Enter
from simsplit.parties.seats import SEATS
from simsplit.phases import Phase
from simsplit.scenario import Scenario
from simsplit.schedules.cohort import Lineup

PHASE = Phase("train", rounds=1)


class Rounds:
    """One side of a comparison: the same round over and over."""

    def __init__(
        self,
        given: Scenario,
        data: Prepared,
        steps: int,
        places: Places | None = None,
        *,
        seats: int = SEATS,
    ) -> None:
        """Assemble the scenario.

        Each client takes `steps` steps in a round. `places` hold the clients; without them, clients
        are in this process. Clients beyond `seats` rest, if the scenario allows it.
        """
        cpu = torch.device("cpu")
        pool = None
        if places is not None:
            samples = [len(part) for part in data.parts]
            pool = places.pool(partial(HostRecipe.of, given, data), samples, cpu)
        assembler = Assembler(given, data, cpu)
        assembler.seats = seats
        self.parts = assembler.assemble(pool)
        self.parts.exchange.announce(self.parts.clients, counted=False)
        self.phase = replace(PHASE, rounds=given.schedule.rounds or PHASE.rounds)
        self.enter()
        self.steps = dict.fromkeys(self.parts.clients, steps)
        self.number = 0

    def seconds(self) -> float:
        """Time the next round."""
        self.number += 1
        self.before()
        lineup = Lineup(self.number, self.phase, 1.0, self.steps)
        started = time.perf_counter()
        with self.parts.exchange.moment.enter_round(self.number, self.phase, lineup.clients):
            self.parts.course.run(lineup, lambda done, total: None)
        self.after()
        return time.perf_counter() - started

    def enter(self) -> None:
        """Have all enter the phase."""
        self.parts.server.enter(self.phase, 1.0)
        self.parts.pool.ask_all(self.parts.clients, Enter(self.phase, 1.0))

    def before(self) -> None:
        """Prepare a round, untimed."""

    def after(self) -> None:
        """End a round within its time; by default nothing is left to do."""
