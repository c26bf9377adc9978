"""This module runs a scenario's detectors, applies their responses and keeps their state."""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.detectors import Findings, Readings, TrunkTurn, Watch
from simsplit.detectors.safesplit import SafeSplit
from simsplit.legs import ClientId
from simsplit.scenario import Scenario
from simsplit.schedules.courses import InTurn
from simsplit.schedules.responses import Guard, Turns
from simsplit.states import select_below


class Detection:
    """The detectors of a run: it judges each round from the sensor's readings, and responds."""

    def __init__(self, scenario: Scenario, parts: Assembly, num_classes: int) -> None:
        self.configs = scenario.detectors
        self.watch = Watch(self.configs, scenario.malicious, num_classes)
        self.guard = Guard()
        self.sensor = parts.exchange.sensor
        self.undoes = any(c.response == "rollback" and not c.by_turns for c in self.configs)
        """Whether a response can undo a whole round."""
        self.turns: Turns | None = None
        if any(config.by_turns for config in self.configs):
            assert isinstance(parts.course, InTurn), "Given.TURNS is needed by these detectors"
            self.turns = parts.course.turns = Turns(
                parts.exchange, hands_over=parts.course.hands_over
            )
            self.turns.judge = self._judge_turns
        parts.server.trust = self.guard.trust
        if parts.federation is not None:
            parts.federation.trust = self.guard.trust

    def judge_round(self, number: int) -> tuple[Findings, bool]:
        """Judge a round; return the findings, and whether the round must be undone."""
        readings = self.sensor.take() if self.sensor is not None else Readings()
        turns = self.turns.turns if self.turns is not None else ()
        verdicts = self.watch.judge_round(number, readings, turns)
        flagged: dict[str, set[ClientId]] = {}
        for config in self.configs:
            # detectors of turns roll back within the round, so nothing is left to undo here
            if not (config.by_turns and config.response == "rollback"):
                flagged.setdefault(config.response, set()).update(verdicts.flagged[config.title])
        return verdicts, self.guard.respond(flagged)

    def _judge_turns(self, turns: Sequence[TrunkTurn]) -> Collection[ClientId]:
        return {
            client
            for detector in self.watch.detectors
            if isinstance(detector, SafeSplit) and detector.config.response == "rollback"
            for client in detector.find_flagged(turns)
        }

    def leave_out(self, clients: Collection[ClientId]) -> None:
        """Bar clients that the run continues without, and forget their turns."""
        self.guard.barred.update(clients)
        if self.turns is not None:
            self.turns.forget(clients)

    @property
    def _remembering(self) -> dict[str, Watch | Guard | Turns]:
        """The parts that remember something between rounds, by their keys in a checkpoint."""
        parts: dict[str, Watch | Guard | Turns | None]
        parts = {"watch": self.watch, "guard": self.guard, "turns": self.turns}
        return {key: part for key, part in parts.items() if part is not None}

    def state(self) -> dict[str, Tensor]:
        """Return everything on which later verdicts depend."""
        return {
            f"{key}/{name}": tensor
            for key, part in self._remembering.items()
            for name, tensor in part.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned."""
        for key, part in self._remembering.items():
            part.load(select_below(state, f"{key}/"))
