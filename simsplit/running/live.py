"""All of a run that lives in memory: parts, detection, attacks, and how far they have come."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from simsplit.assembly import Assembler, Assembly, HostRecipe
from simsplit.assembly.sizing import estimate_memory
from simsplit.assembly.state import collect_state, restore_state
from simsplit.attacking import Attacking
from simsplit.data import Prepared
from simsplit.detection import Detection
from simsplit.engine.pool import Places
from simsplit.machine import resident_bytes
from simsplit.packets import ClientId
from simsplit.parties.calls import Enter
from simsplit.preflight import refuse_if_too_large
from simsplit.program import Program
from simsplit.results.checkpoints import Progress
from simsplit.scenario import Scenario
from simsplit.schedules.cohort import Lineup
from simsplit.states import below


@dataclass(frozen=True)
class Mark:
    """A run's parts as they were when a round began."""

    round: int
    state: Mapping[str, Tensor]
    holder: ClientId | None


class LiveRun:
    """What a run trains, watches and attacks; it can be built anew where hosts were lost."""

    def __init__(
        self, scenario: Scenario, data: Prepared, device: torch.device, hosts: Places | None
    ) -> None:
        """`hosts` are where clients live; without any they live here, whatever was asked for."""
        self.scenario, self.data, self.device, self.hosts = scenario, data, device, hosts
        assembler = Assembler(scenario, data, device)
        self.estimate = estimate_memory(assembler.owners, data, 0 if hosts is None else len(hosts))
        refuse_if_too_large(self.estimate, device)
        self.clock, self.flops = assembler.clock, assembler.flops
        self.progress = Progress()
        self._build(assembler)
        self.program = Program(scenario, self.parts)

    def build(self) -> None:
        """Everything as it is before training."""
        self.progress = Progress()
        self._build(Assembler(self.scenario, self.data, self.device))

    def _build(self, assembler: Assembler) -> None:
        self.parts = self._assembled(assembler)
        self.detection = Detection(self.scenario, self.parts, self.data.info.classes)
        self.attacking = Attacking(self.scenario, self.parts, self.data, self.device)

    def _assembled(self, assembler: Assembler) -> Assembly:
        if self.hosts is None:
            return assembler.assemble()
        samples = [len(part) for part in self.data.parts]
        recipe_of = partial(HostRecipe.of, self.scenario, self.data)
        return assembler.assemble(self.hosts.pool(recipe_of, samples, self.device))

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on and that is a tensor."""
        held = collect_state(self.parts)
        held |= {f"detection/{name}": tensor for name, tensor in self.detection.state().items()}
        return held | {f"attacks/{name}": t for name, t in self.attacking.state().items()}

    def load(self, state: Mapping[str, Tensor], progress: Progress) -> None:
        """Take over what `state` gave, and what it was given at."""
        self.progress = progress
        wire = self.parts.wire
        wire.up, wire.down = progress.bytes_up, progress.bytes_down
        self.parts.exchange.holder = progress.holder
        self.parts.pool.return_to(progress.round)
        restore_state(self.parts, state)
        self.detection.load(below(state, "detection/"))
        self.attacking.load(below(state, "attacks/"))

    def enter(self, lineup: Lineup) -> None:
        """Tell server and clients which phase a round belongs to, and its learning rate."""
        phase, factor = lineup.phase, lineup.lr_factor
        self.parts.server.enter(phase, factor)
        with self.parts.exchange.name_failures():
            self.parts.pool.ask_all(self.parts.clients, Enter(phase, factor))

    def marked(self, round_number: int) -> Mark:
        """How the parts are when a round begins, for `undo`."""
        self.parts.pool.mark(round_number)
        state = {
            name: tensor.detach().clone() for name, tensor in collect_state(self.parts).items()
        }
        return Mark(round_number, state, self.parts.exchange.holder)

    def undo(self, mark: Mark) -> None:
        """Be as when a round began, but for who trained last: it has what was shared then."""
        restore_state(self.parts, mark.state)
        self.parts.pool.undo(mark.round)
        if self.parts.pool.remote and self.parts.federation is None and self.scenario.shares:
            self.parts.exchange.bring_from(mark.holder)

    def leave_out(self, clients: Collection[ClientId]) -> None:
        """Go on without some clients; what is shared, with what another of them holds of it."""
        self.detection.guard.barred.update(clients)
        self.parts.evaluator.leave_out(clients)
        if self.parts.exchange.holder in clients:
            self.parts.exchange.holder = self._last_of_others(clients)

    def _last_of_others(self, clients: Collection[ClientId]) -> ClientId | None:
        """Who trained last in the last round, but for these and those who were left out before."""
        if not self.progress.round:
            return None
        lineup = self.program.lineup(self.progress.round)
        turns = list(self.scenario.schedule.turns(lineup.steps))
        gone = {*clients, *self.detection.guard.barred}
        return next((client for client in reversed(turns) if client not in gone), None)

    def resident_bytes(self) -> int | None:
        """What this process and its hosts have in memory; None where that cannot be known."""
        held = [resident_bytes(), *(self.hosts.resident_bytes() if self.hosts is not None else ())]
        return None if None in held else sum(filter(None, held))
