"""The live run is everything of a run in memory: its parts, detection, attacks and progress."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from simsplit.assembly import Assembler, HostRecipe
from simsplit.assembly.memory import estimate_memory
from simsplit.assembly.state import collect_state, restore_state
from simsplit.attacking import Attacking
from simsplit.data import Prepared
from simsplit.data.client_parts import count_rows
from simsplit.detection import Detection
from simsplit.engine.pool import InlinePool, Places
from simsplit.errors import RunFailedError, format_count
from simsplit.legs import ClientId
from simsplit.machine import read_resident_bytes
from simsplit.parties.calls import Enter
from simsplit.parties.joined import JoinedEnd
from simsplit.program import Program
from simsplit.results.checkpoints import Progress
from simsplit.results.row_file import ROWS
from simsplit.running.wire_truth import describe_wire
from simsplit.scenario import Scenario
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import refuse
from simsplit.schedules.cohort import Lineup
from simsplit.states import select_below
from simsplit.wire import WireObserver


@dataclass(frozen=True)
class Mark:
    """The state of a run's parts at the beginning of a round."""

    round: int
    state: Mapping[str, Tensor]
    holder: ClientId | None


class LiveRun:
    """The parts that a run trains, watches and attacks; they can be rebuilt if hosts are lost."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        hosts: Places | None,
        left_out: Collection[ClientId] = (),
        *,
        folder: Path,
        recorders: Sequence[WireObserver] = (),
    ) -> None:
        """Build the parts; clients run on `hosts`, or in this process if there are none.

        The clients in `left_out` take part in no round; hosts may leave out others. `folder` is
        that of the run's checkpoints.
        """
        self.folder, self.recorders = folder, recorders
        self._stacks = True
        self._left_out = frozenset(left_out)
        self.scenario, self.data, self.device, self.hosts = scenario, data, device, hosts
        assembler = self._make_assembler()
        self.estimate = estimate_memory(assembler.owners, data, 0 if hosts is None else len(hosts))
        refuse(Occasion.MEMORY, scenario, self.estimate, device, folder / ROWS)
        self.clock, self.flops = assembler.clock, assembler.flops
        self.copies = assembler.owners.copies
        """Why both ends of a tied model have a table of tokens; empty if they have one."""
        self.progress = Progress()
        self.has_returned = False
        """Whether the run has gone back, before it had ended, to a checkpoint or its beginning."""
        self._build(assembler)
        self.program = Program(scenario, self.parts, self.absent)
        self.leave_out(self.absent)

    @property
    def absent(self) -> frozenset[ClientId]:
        """The clients without which the run began, or goes on."""
        return self._left_out | frozenset(self.hosts.left_out if self.hosts is not None else ())

    def build(self) -> None:
        """Build everything anew, in its state before training."""
        self.progress, self.has_returned = Progress(), True
        self._build(self._make_assembler())

    def take_one_by_one(self) -> None:
        """Let clients train one after another from now on, where stacks are slower."""
        self._stacks = False
        if isinstance(self.parts.pool, InlinePool):
            self.parts.pool.stacker = None
            self.parts.server.end.joins_rows = False

    def _make_assembler(self) -> Assembler:
        return Assembler(
            self.scenario, self.data, self.device, rests_in=self.folder, stacks=self._stacks
        )

    def _build(self, assembler: Assembler) -> None:
        pool = None
        if self.hosts is not None:
            samples = count_rows(self.data.parts).tolist()
            recipe_of = partial(HostRecipe.of, self.scenario, self.data)
            pool = self.hosts.pool(recipe_of, samples, self.device)
        self.parts = assembler.assemble(pool)
        self.parts.exchange.names = self.data.client_names
        self.detection = Detection(self.scenario, self.parts, self.data.info.classes)
        self.attacking = Attacking(self.scenario, self.parts, self.data, self.device)
        for recorder in self.recorders:
            recorder.follow(self.parts.wire, *describe_wire(self.scenario, self.parts, self.data))

    def state(self) -> dict[str, Tensor]:
        """Return all tensors on which the next round depends."""
        held = collect_state(self.parts)
        held |= {f"detection/{name}": tensor for name, tensor in self.detection.state().items()}
        return held | {f"attacks/{name}": t for name, t in self.attacking.state().items()}

    def load(self, state: Mapping[str, Tensor], progress: Progress) -> None:
        """Restore the state that `state` returned, at that progress."""
        self.progress, self.has_returned = progress, True
        wire = self.parts.wire
        wire.up, wire.down = progress.bytes_up, progress.bytes_down
        self.parts.exchange.holder = progress.holder
        self.parts.pool.return_to(progress.round)
        restore_state(self.parts, state, self.folder)
        self.detection.load(select_below(state, "detection/"))
        self.attacking.load(select_below(state, "attacks/"))

    def enter(self, lineup: Lineup) -> None:
        """Tell server and clients which phase a round belongs to, and its learning rate."""
        phase, factor = lineup.phase, lineup.lr_factor
        self.parts.server.enter(phase, factor)
        with self.parts.exchange.name_failures():
            self.parts.pool.enter(self.parts.clients, Enter(phase, factor))

    def mark(self, round_number: int) -> Mark:
        """Return the parts' state at the beginning of a round, for `undo`."""
        self.parts.pool.mark(round_number)
        state = {
            name: tensor.detach().clone() for name, tensor in collect_state(self.parts).items()
        }
        return Mark(round_number, state, self.parts.exchange.holder)

    def undo(self, mark: Mark) -> None:
        """Restore the state at the beginning of a round, except for the holder of shared weights.

        The client that trained last gets the weights that were shared at the beginning.
        """
        restore_state(self.parts, mark.state)
        self.parts.pool.undo(mark.round)
        # Remote clients restore their own state only; the former holder has the shared weights.
        if self.parts.pool.remote and self.parts.federation is None and self.scenario.shares:
            self.parts.exchange.bring_from(mark.holder)

    def leave_out(self, clients: Collection[ClientId]) -> None:
        """Continue without some clients; if one held the shared weights, another's are used."""
        if self.scenario.parties:
            clients = self._leave_out_parties(clients)
        self.program.left_out = frozenset(clients)
        self.detection.leave_out(clients)
        self.parts.evaluator.leave_out(clients)
        if self.parts.exchange.holder in clients:
            self.parts.exchange.holder = self._find_last_other(clients)

    def _leave_out_parties(self, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Leave parties out of each step, and return them without the one that has the labels.

        That one's columns count as zeros: without its labels nobody could learn.
        """
        reader, exchange = self.scenario.label_party, self.parts.exchange
        end = exchange.server.end
        assert isinstance(end, JoinedEnd), "the server of parties joins what they send"
        end.joining.muted = {reader} & {*clients}
        gone = {*clients} - {reader}
        exchange.parties = [each for each in self.scenario.parties if each not in gone]
        return gone

    def _find_last_other(self, clients: Collection[ClientId]) -> ClientId | None:
        """Return the client that trained last, without these clients and those left out before."""
        if not self.progress.round:
            return None
        lineup = self.program.choose_lineup(self.progress.round)
        turns = list(self.scenario.schedule.turns(lineup.steps))
        gone = {*clients, *self.detection.guard.barred}
        return next((client for client in reversed(turns) if client not in gone), None)

    def find_spent(self, number: int) -> dict[ClientId, float]:
        """Return the clients whose budget the round after `number` would pass, with its epsilon."""
        progress, limit = self.progress, self.scenario.epsilon_limit
        if limit is None or not progress.epsilon_next or number >= self.program.rounds:
            return {}
        lineup = self.program.choose_lineup(number + 1)
        going = lineup.steps.keys() - self.detection.guard.barred
        reached = {client: progress.epsilon_next.get(str(client), 0.0) for client in going}
        return {client: epsilon for client, epsilon in reached.items() if epsilon > limit}

    def refuse_too_few(self, number: int) -> None:
        """Raise RunFailedError if fewer clients remain than the scenario needs."""
        count = self.scenario.clients.count
        self._refuse_without_labels(number)
        # the highest limit is named first
        for least in sorted(self.scenario.client_limits, key=lambda limit: -limit.count):
            gone = self.program.left_out if least.counts_flagged else self.detection.guard.barred
            if (remaining := count - len(gone)) < least.count:
                limit = f", but {least.reason} needs {least.count}" if least.reason else ""
                everybody = format_count(count, "client")
                raise RunFailedError(
                    f"round {number}: {remaining} of {everybody} remain{limit}; "
                    "the others were flagged by detectors, or are in expelled.csv with the "
                    "reasons. The run's state before this round is kept"
                )

    def _refuse_without_labels(self, number: int) -> None:
        """Raise RunFailedError if the party that has the labels is gone."""
        if self.hosts is None or not self.scenario.parties:
            return
        if (reader := self.scenario.label_party) in self.absent:
            raise RunFailedError(
                f"round {number}: {self.data.client_names.describe(reader)} has the labels, and is "
                "gone: without them nobody learns. The run's state before this round is kept"
            )

    def list_present(self) -> list[ClientId]:
        """List the clients that are not left out."""
        return [client for client in self.parts.clients if client not in self.program.left_out]

    def resident_bytes(self) -> int | None:
        """Return the memory of this process and its hosts; None if it cannot be measured."""
        held = [
            read_resident_bytes(),
            *(self.hosts.resident_bytes() if self.hosts is not None else ()),
        ]
        return None if None in held else sum(filter(None, held))
