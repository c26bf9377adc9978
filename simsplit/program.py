"""This module plans a run: its phases, and which clients take part in each round.

The plan follows from the scenario, the clients' data and the methods; it has no state.
"""

from collections.abc import Collection
from dataclasses import replace

from simsplit.assembly import Assembly
from simsplit.errors import DataError
from simsplit.legs import ClientId
from simsplit.parties.calls import Plan
from simsplit.phases import TRAIN, Phase
from simsplit.scenario import Scenario
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import refuse
from simsplit.schedules.cohort import Lineup, choose


class Program:
    """The phases, rounds and lineups of one run."""

    def __init__(
        self, scenario: Scenario, parts: Assembly, left_out: Collection[ClientId] = ()
    ) -> None:
        """Plan a run; the clients in `left_out` take part in no round."""
        self.scenario = scenario
        self.left_out = frozenset(left_out)
        main = Phase(TRAIN, rounds=0)
        pool, clients = parts.pool, parts.clients
        self.steps_per_epoch = {main.source: pool.count_steps(clients, main.source)}
        """Each client's number of batches in a pass over its data, by source."""
        self.phases = self._plan_phases(parts)
        for phase in self.phases:
            if phase.source not in self.steps_per_epoch:
                self.steps_per_epoch[phase.source] = pool.count_steps(clients, phase.source)
        self.rounds = sum(phase.rounds for phase in self.phases)
        refuse(Occasion.ROUNDS, self.scenario, self.rounds)

    def choose_lineup(self, number: int) -> Lineup:
        """Choose the clients of a round, its phase and the factor of its learning rates."""
        scenario = self.scenario
        phase, done = self._find_phase(number)
        factor = scenario.train.lr_schedule.factor(done + 1, phase.rounds)
        batches = self.steps_per_epoch[phase.source].copy()
        batches[[*self.left_out]] = 0
        schedule = scenario.schedule
        chosen, drops = choose(scenario.cohort, schedule, batches, number, scenario.seed)
        most = int(schedule.limit_steps(batches).max(initial=0))
        return Lineup(number, phase, factor, chosen, drops, most)

    def _plan_phases(self, parts: Assembly) -> list[Phase]:
        """Return the phases that the methods ask for, then the main phase."""
        steps = self.steps_per_epoch["private"]
        if not steps.any():
            raise DataError("no client has any data to train on")
        share = self.scenario.cohort.compute_share(self.scenario.clients.count)
        rounds = self.scenario.schedule.count_rounds(steps, share)
        if not self.left_out:  # a client that is left out may have had the most batches
            most = rounds * int(self.scenario.schedule.limit_steps(steps).max())
            refuse(Occasion.BATCHES, self.scenario, most)
        # any client can answer: all have the same methods
        wanted, main = parts.pool.ask(parts.clients[0], Plan(rounds))
        gradients = self.scenario.gradients_cross
        return [*wanted, replace(main, rounds=rounds, gradients=gradients)]

    def _find_phase(self, number: int) -> tuple[Phase, int]:
        """Return the phase of a round, and the number of the phase's rounds before it."""
        done = number - 1
        for phase in self.phases:
            if done < phase.rounds:
                return phase, done
            done -= phase.rounds
        raise AssertionError(f"round {number} is past the last")
