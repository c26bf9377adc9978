"""A run's program: its phases one after another, and for each round who takes part and how far.

All of it follows from the scenario, the clients' data and the methods; nothing of it is state.
"""

from dataclasses import replace

from simsplit.assembly import Assembly
from simsplit.errors import DataError, ScenarioError
from simsplit.packets import ClientId
from simsplit.parties.calls import CountSteps, Plan
from simsplit.phases import TRAIN, Phase
from simsplit.poisons.malicious import FIELD
from simsplit.scenario import Scenario
from simsplit.schedules.cohort import Lineup, choose


class Program:
    """Phases, rounds and lineups of one run."""

    def __init__(self, scenario: Scenario, parts: Assembly) -> None:
        self.scenario = scenario
        main = Phase(TRAIN, rounds=0)
        self._steps_per_epoch = {main.source: _steps_per_epoch(parts, main)}
        self.phases = self._phases(parts)
        for phase in self.phases:
            if phase.source not in self._steps_per_epoch:
                self._steps_per_epoch[phase.source] = _steps_per_epoch(parts, phase)
        self.rounds = sum(phase.rounds for phase in self.phases)
        self._refuse_idle_poisons()

    def lineup(self, number: int) -> Lineup:
        """Who takes part in a round, in which phase, and at which learning rates."""
        scenario = self.scenario
        phase, done = self._phase_of(number)
        factor = scenario.train.lr_schedule.factor(done + 1, phase.rounds)
        batches = self._steps_per_epoch[phase.source]
        schedule = scenario.schedule
        chosen, drops = choose(scenario.cohort, schedule, batches, number, scenario.seed)
        return Lineup(number, phase, factor, chosen, drops)

    def is_last(self, phase: Phase) -> bool:
        """Whether a phase is training proper, not a warm-up."""
        return phase is self.phases[-1]

    def _phases(self, parts: Assembly) -> list[Phase]:
        """What the methods ask for first, then training proper."""
        steps = self._steps_per_epoch["private"]
        if not any(steps.values()):
            raise DataError("no client has any data to train on")
        rounds = self.scenario.schedule.num_rounds(steps)
        self._refuse_late(rounds * max(self.scenario.schedule.local(steps).values()))
        wanted, main = parts.pool.ask(parts.clients[0], Plan(rounds))
        gradients = self.scenario.gradients_cross
        return [*wanted, replace(main, rounds=rounds, gradients=gradients)]

    def _refuse_late(self, most: int) -> None:
        """ScenarioError for a method that would begin after the last batch of every client."""
        for index, config in enumerate(self.scenario.method):
            if config.begins is not None and getattr(config, config.begins) >= most:
                raise ScenarioError(
                    f"method.{index}.{config.begins}",
                    f"{config.word} would never begin: no client trains on more than {most} "
                    f"batches; use less than {most}, or more rounds",
                )

    def _refuse_idle_poisons(self) -> None:
        """ScenarioError for a poison that would begin after the last round."""
        malicious = self.scenario.clients.malicious
        for index, poison in enumerate(malicious.poison if malicious else ()):
            if self.rounds and poison.from_round > self.rounds:
                raise ScenarioError(
                    f"{FIELD}.poison.{index}.from_round",
                    f"{poison.word} would never act: the run ends after round {self.rounds}; use "
                    "an earlier round, or more rounds",
                )

    def _phase_of(self, number: int) -> tuple[Phase, int]:
        """The phase of a round, and how many of the phase's rounds come before it."""
        done = number - 1
        for phase in self.phases:
            if done < phase.rounds:
                return phase, done
            done -= phase.rounds
        raise AssertionError(f"round {number} is past the last")


def _steps_per_epoch(parts: Assembly, phase: Phase) -> dict[ClientId, int]:
    """Each client's batches in a pass over its data."""
    return parts.pool.ask_all(parts.clients, CountSteps(phase.source))
