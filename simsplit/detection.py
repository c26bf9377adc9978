"""A run's detectors, what follows from their verdicts, and what both must remember."""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.detectors import Findings, Readings, Turn, Watch
from simsplit.detectors.safesplit import SafeSplit
from simsplit.packets import ClientId
from simsplit.scenario import Scenario
from simsplit.schedules.courses import InTurn
from simsplit.schedules.responses import Guard, Turns
from simsplit.states import below


class Detection:
    """Looks at each round through the parts' sensor, and tells the parts what follows."""

    def __init__(self, scenario: Scenario, parts: Assembly, num_classes: int) -> None:
        self.configs = scenario.detectors
        self.watch = Watch(self.configs, scenario.malicious, num_classes)
        self.guard = Guard()
        self.sensor = parts.exchange.sensor
        self.undoes = any(c.response == "rollback" and not c.by_turns for c in self.configs)
        """Whether a round may have to be undone."""
        self.turns: Turns | None = None
        if any(config.by_turns for config in self.configs):
            assert isinstance(parts.course, InTurn), "refused for others when the scenario is read"
            self.turns = parts.course.turns = Turns(
                parts.exchange, hands_over=parts.course.hands_over
            )
            self.turns.judge = self._bad_turns
        parts.server.trust = self.guard.trust
        if parts.federation is not None:
            parts.federation.trust = self.guard.trust

    def look(self, number: int) -> tuple[Findings, bool]:
        """Judge a round; whether it is to be undone."""
        readings = self.sensor.take() if self.sensor is not None else Readings()
        turns = self.turns.turns if self.turns is not None else ()
        found = self.watch.close(number, readings, turns)
        by_turns = {config.title for config in self.configs if config.by_turns}
        flagged: dict[str, set[ClientId]] = {}
        for config in self.configs:
            if config.title not in by_turns or config.response != "rollback":
                flagged.setdefault(config.response, set()).update(found.flagged[config.title])
        return found, self.guard.respond(flagged)

    def _bad_turns(self, turns: Sequence[Turn]) -> Collection[ClientId]:
        return {
            client
            for detector in self.watch.detectors
            if isinstance(detector, SafeSplit) and detector.config.response == "rollback"
            for client in detector.flagged(turns)
        }

    def state(self) -> dict[str, Tensor]:
        """All that the next round's verdicts depend on."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "watch": self.watch.state(),
            "guard": self.guard.state(),
            "turns": self.turns.state() if self.turns is not None else {},
        }
        return {f"{part}/{name}": t for part, held in parts.items() for name, t in held.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for part in (self.watch, self.guard, *([self.turns] if self.turns is not None else ())):
            part.load(below(state, f"{type(part).__name__.lower()}/"))
