"""This module plans a run: its phases, and which clients take part in each round.

The plan follows from the scenario, the clients' data and the methods; it has no state.
"""

from collections.abc import Collection
from dataclasses import replace

from simsplit.assembly import Assembly
from simsplit.errors import DataError, ScenarioError
from simsplit.packets import ClientId
from simsplit.parties.calls import Plan
from simsplit.phases import TRAIN, Phase
from simsplit.poisons.malicious import FIELD
from simsplit.scenario import Scenario
from simsplit.schedules.cohort import BatchCounts, Lineup, choose


class Program:
    """The phases, rounds and lineups of one run."""

    def __init__(
        self, scenario: Scenario, parts: Assembly, left_out: Collection[ClientId] = ()
    ) -> None:
        """Plan a run; the clients in `left_out` take part in no round."""
        self.scenario = scenario
        self.left_out = frozenset(left_out)
        main = Phase(TRAIN, rounds=0)
        self.steps_per_epoch = {main.source: _count_steps(parts, main)}
        """Each client's number of batches in a pass over its data, by source."""
        self.phases = self._plan_phases(parts)
        for phase in self.phases:
            if phase.source not in self.steps_per_epoch:
                self.steps_per_epoch[phase.source] = _count_steps(parts, phase)
        self.rounds = sum(phase.rounds for phase in self.phases)
        self._refuse_idle_poisons()

    def choose_lineup(self, number: int) -> Lineup:
        """Choose the clients of a round, its phase and the factor of its learning rates."""
        scenario = self.scenario
        phase, done = self._find_phase(number)
        factor = scenario.train.lr_schedule.factor(done + 1, phase.rounds)
        batches = self.steps_per_epoch[phase.source].leave_out(self.left_out)
        schedule = scenario.schedule
        chosen, drops = choose(scenario.cohort, schedule, batches, number, scenario.seed)
        return Lineup(number, phase, factor, chosen, drops)

    def is_last(self, phase: Phase) -> bool:
        """Return whether a phase is the main phase rather than one before it."""
        return phase is self.phases[-1]

    def _plan_phases(self, parts: Assembly) -> list[Phase]:
        """Return the phases that the methods ask for, then the main phase."""
        steps = self.steps_per_epoch["private"]
        if not steps.array.any():
            raise DataError("no client has any data to train on")
        rounds = self.scenario.schedule.count_rounds(steps)
        self._refuse_late(rounds * int(self.scenario.schedule.limit_steps(steps.array).max()))
        # any client can answer: all have the same methods
        wanted, main = parts.pool.ask(parts.clients[0], Plan(rounds))
        gradients = self.scenario.gradients_cross
        return [*wanted, replace(main, rounds=rounds, gradients=gradients)]

    def _refuse_late(self, most: int) -> None:
        """Raise ScenarioError if a method would begin after every client's last batch."""
        for index, config in enumerate(self.scenario.method):
            if self.left_out:  # one of these may have had the most batches
                return
            if config.start_field is not None and getattr(config, config.start_field) >= most:
                raise ScenarioError(
                    f"method.{index}.{config.start_field}",
                    f"must be less than {most}, the most batches on which a client trains, got "
                    f"{getattr(config, config.start_field)}: {config.kind_name} would never begin; "
                    "use a smaller number, or more rounds",
                )

    def _refuse_idle_poisons(self) -> None:
        """Raise ScenarioError if a poison would begin after the last round."""
        malicious = self.scenario.clients.malicious
        for index, poison in enumerate(malicious.poison if malicious else ()):
            if self.rounds and poison.from_round > self.rounds:
                raise ScenarioError(
                    f"{FIELD}.poison.{index}.from_round",
                    f"must be at most {self.rounds}, the last round, got {poison.from_round}: "
                    f"{poison.kind_name} would never act; use an earlier round, or more rounds",
                )

    def _find_phase(self, number: int) -> tuple[Phase, int]:
        """Return the phase of a round, and the number of the phase's rounds before it."""
        done = number - 1
        for phase in self.phases:
            if done < phase.rounds:
                return phase, done
            done -= phase.rounds
        raise AssertionError(f"round {number} is past the last")


def _count_steps(parts: Assembly, phase: Phase) -> BatchCounts:
    """Return each client's number of batches in a pass over its data; 0 of one that is absent."""
    return BatchCounts(parts.pool.count_steps(parts.clients, phase.source))
