"""From a scenario to a run: prepares data, assembles the parts, drives the phases and rounds.

One round is: every client's turns, the evaluation if one is due, the tables, a checkpoint. Whatever
stops a run (a kill, a full disk, a loss that is no number, Ctrl-C) leaves the last checkpoint and
the tables up to it, from which `resume` goes on as if nothing had happened. A host that is lost is
dealt with the same way, in the running process: back to the last checkpoint, and on from there.
"""

import math
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.assembly import Assembler, Assembly, CrewRecipe
from simsplit.assembly.sizing import estimate
from simsplit.assembly.state import put_back, state_of
from simsplit.data import Prepared
from simsplit.detectors.watch import COLUMNS, Watch
from simsplit.engine.pool import HostLost
from simsplit.errors import RunError, RunFailedError
from simsplit.hosting import engine_of, hosts_of
from simsplit.machine import device_of, pinned_threads, resident_bytes
from simsplit.methods.base import Phase
from simsplit.packets import ClientId
from simsplit.preflight import refuse_if_too_large
from simsplit.program import Program
from simsplit.progress import Observer, Plan, Silent
from simsplit.recovery import Recovery
from simsplit.results import (
    CHECKPOINTS,
    SCENARIO,
    SUMMARY,
    SWEEP,
    TRACEBACK,
    Run,
    checkpoints,
)
from simsplit.results.checkpoints import Progress
from simsplit.results.environment import describe_environment
from simsplit.results.images import PICTURE
from simsplit.results.ledger import Columns, Ledger, Round
from simsplit.results.summary import summarise
from simsplit.scenario import Scenario
from simsplit.schedules.cohort import Lineup
from simsplit.states import below
from simsplit.vigilance import Vigilance

if TYPE_CHECKING:
    from torch import Tensor

    from simsplit.engine.ray_pool import Hosts

LOSSES = 3
"""How often hosts may be lost in the same round before the run gives up."""


def run(
    scenario: Scenario,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Train what the scenario describes into a run directory, and open it.

    Args:
        scenario: From `load_scenario`.
        out: The run directory; by default a fresh one named after the scenario.
        resume: Go on from the directory's last checkpoint (or start, if there is none).
        observer: Told of progress.

    >>> run(load_scenario("scenarios/quickstart.yaml"), out="runs/first")  # doctest: +SKIP
    """
    path = run_directory(scenario, out, resume=resume)
    with pinned_threads(scenario.threads):
        data = scenario.prepared()
        with hosts_of(scenario, data.nbytes) as hosts:
            experiment = Experiment(scenario, path, observer or Silent(), data, hosts)
            experiment.run(resume=resume)
    return Run.load(path)


def run_directory(scenario: Scenario, out: str | Path | None, *, resume: bool) -> Path:
    """Where a run goes; RunError rather than writing over another."""
    if out is None:
        return numbered(scenario.output.root / scenario.name, resume=resume, foreign=SWEEP)
    path = Path(out)
    if not resume and (path / SCENARIO).exists():
        raise RunError(
            f"{path} already holds a run; give another --out, or --resume to go on with it"
        )
    return path


def numbered(base: Path, *, resume: bool, foreign: str) -> Path:
    """A free form of `base`, numbered if need be; to resume, the last without a foreign file."""
    last, candidate, number = None, base, 1
    while candidate.exists():
        last = last if (candidate / foreign).exists() else candidate
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return last if resume and last is not None else candidate


class Experiment:
    """One run in progress."""

    def __init__(
        self,
        scenario: Scenario,
        path: Path,
        observer: Observer,
        data: Prepared | None = None,
        hosts: "Hosts | None" = None,
    ) -> None:
        """`hosts` are where clients live; without any they live here, whatever was asked for."""
        self.scenario, self.path, self.observer = scenario, path, observer
        self.hosts = hosts
        self.device = device_of(scenario.device)
        self.clients = range(scenario.clients.count)
        self.data = data or scenario.prepared()
        scenario.shapes(self.data.info)
        assembler = Assembler(scenario, self.data, self.device)
        num_hosts = 0 if hosts is None else len(hosts)
        self.estimate = estimate(assembler.owners, self.data, num_hosts)
        refuse_if_too_large(self.estimate, self.device)
        self.parts = self._assemble(assembler)
        self.vigilance = self._vigilance()
        self.recovery = self._recovery()
        self.progress = Progress()
        self.kept = 0
        """The round after which the last checkpoint was written."""
        self.digest = checkpoints.digest_of(scenario.identity())
        self.flops = assembler.flops
        self.ledger = Ledger(path, _columns(scenario), assembler.clock)
        self.writer = self.ledger.writer
        self.program = Program(scenario, self.parts)
        self.rounds = self.program.rounds
        self._lost: list[int] = []

    def _assemble(self, assembler: Assembler) -> Assembly:
        if self.hosts is None:
            return assembler.assemble()
        from simsplit.engine.ray_pool import RayPool, placed

        recipe = CrewRecipe.of(self.scenario, self.data, "cuda" if self.hosts.gpus else "cpu")
        where = placed([len(part) for part in self.data.parts], len(self.hosts))
        return assembler.assemble(RayPool(self.hosts, recipe, where, self.device))

    def _vigilance(self) -> Vigilance:
        return Vigilance(self.scenario, self.parts, self.data.info.classes)

    def _recovery(self) -> Recovery:
        return Recovery(self.scenario, self.parts, self.data, self.device)

    def run(self, *, resume: bool) -> None:
        """Train to the end, or until something stops it."""
        resumed = resume and self._resume()
        if not resumed:
            self.writer.start(self.scenario.yaml(), describe_environment(self.device))
        try:
            self._begin(counted=not resumed)
            while self.progress.round < self.rounds and not self._should_stop():
                self._round_despite_losses(self.progress.round + 1)
        except KeyboardInterrupt:
            self._note("interrupted")
            raise
        except Exception as error:
            why = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            self._note("failed", reason=why)
            self.writer.write_text(TRACEBACK, traceback.format_exc())
            raise
        come_to = summarise(Run.load(self.path), self.scenario.figures)
        resident = self._resident_bytes()
        self._note("finished", seed=self.scenario.seed, **come_to, resident_bytes=resident)
        if self.scenario.attacks:
            self._picture()

    def _picture(self) -> None:
        """What attacks recovered, to be looked at."""
        from simsplit.report.figures import attacked, saved

        saved(attacked({"": Run.load(self.path)}), self.path / PICTURE)

    def _resident_bytes(self) -> int | None:
        """What this process and its hosts have in memory; None where that cannot be known."""
        held = [resident_bytes(), *(self.hosts.resident_bytes() if self.hosts is not None else ())]
        return None if None in held else sum(filter(None, held))

    def _begin(self, *, counted: bool) -> None:
        """Let everyone hear what the methods announce, and say what is about to run."""
        with self.parts.exchange.explained(self.progress.round + 1):
            self.parts.exchange.announce(self.clients, counted=counted)
        self._note("running")
        self.observer.begin(
            Plan(
                path=self.path,
                name=self.scenario.name,
                rounds=self.rounds,
                done=self.progress.round,
                clients=len(self.clients),
                samples=len(self.data.train),
                memory=str(self.estimate),
                engine=engine_of(self.scenario)[1],
            )
        )

    def _round_despite_losses(self, number: int) -> None:
        """Take a round; if a host is lost, go back to the last checkpoint, to start from there."""
        try:
            self._round(number)
        except HostLost as lost:
            self._recover(number, lost)

    def _recover(self, number: int, lost: HostLost) -> None:
        """Start again, however often hosts are lost meanwhile, but not for ever."""
        self._lost.append(number)
        times = self._lost.count(number)
        if times > LOSSES:
            raise RunFailedError(
                f"round {number}: {lost}, for the {times}th time in this round; the run is kept as "
                f"it was after round {self.kept}. Fewer hosts, a smaller batch or more "
                "memory may help"
            ) from lost
        try:
            self._start_again(lost)
        except HostLost as another:
            self._recover(number, another)

    def _start_again(self, lost: HostLost) -> None:
        """Put everyone back to where the last checkpoint has them."""
        assert self.hosts is not None, "none other can be lost"
        others = [str(host) for host in self.hosts.revive() if host != lost.host]
        too = f" (so was host {', '.join(others)})" if others else ""
        self.observer.warn(f"{lost}{too}; going on from the end of round {self.kept}")
        self.parts = self._assemble(Assembler(self.scenario, self.data, self.device))
        self.vigilance, self.recovery = self._vigilance(), self._recovery()
        if not self._resume():
            self.progress = Progress()
            self.writer.rewind(self.writer.empty())
        self.parts.exchange.announce(self.clients, counted=self.progress.round == 0)

    def _round(self, number: int) -> None:
        started = time.perf_counter()
        lineup = self.vigilance.guard.admit(self._enter(number))
        before = self._copied_state() if self.vigilance.undoes else {}
        done = self.parts.course.run(lineup, self.observer.step)
        self._refuse_nonsense(number, done.reports)
        found, undo = self.vigilance.look(number)
        if undo:
            put_back(self.parts, before)
        trained = time.perf_counter()
        figures: dict[str, float] = {}
        own: dict[ClientId, dict[str, float]] = {}
        if self.scenario.evaluate.due(number, self.rounds):
            figures, own = self._evaluate(number, lineup.phase)
        recovered = self._recover_images(number, lineup.phase)
        evaluated = time.perf_counter()
        self.progress.elapsed_s += evaluated - started
        round_ = Round(
            number,
            lineup.phase.name,
            self.clients,
            done.reports,
            done.dropped,
            done.late,
            figures,
            own,
            found.clients,
            found.detections,
            recovered,
            frozenset(self.scenario.malicious),
            frozenset(self.vigilance.guard.barred),
        )
        row = self.ledger.enter(round_, self.parts.wire, self.progress.simulated_s)
        self.progress.simulated_s = float(str(row.get("simulated_total_s", 0.0)))
        self.ledger.time(number, trained - started, evaluated - trained, self.progress.elapsed_s)
        self.progress.round = number
        if self.program.is_last(lineup.phase):  # a warm-up's figures say nothing of when to stop
            self._watch(figures)
        self._checkpoint(number)
        self.observer.round(row, self.progress.elapsed_s)

    def _enter(self, number: int) -> Lineup:
        """Tell everyone which phase a round belongs to, and its learning rate."""
        lineup, parts = self.program.lineup(number), self.parts
        parts.wire.phase, parts.exchange.phase = lineup.phase.name, lineup.phase
        parts.server.enter(lineup.phase, lineup.lr_factor)
        entering = dict.fromkeys(self.clients, (lineup.phase, lineup.lr_factor))
        with parts.exchange.explained(number):
            parts.pool.call("enter", entering)
        return lineup

    def _recover_images(self, number: int, phase: Phase) -> Sequence[dict[str, object]]:
        """Have the attacks judged, if it is time."""
        scenario = self.scenario
        if not (scenario.attacks and scenario.targets.due(number, self.rounds)):
            return ()
        with self._aside(phase, number, [scenario.targets.client]):
            judged = self.recovery.judge(number, self.observer.step)
        self.recovery.save(self.path, number, judged)
        return judged.rows

    @contextmanager
    def _aside(self, phase: Phase, number: int, clients: Sequence[ClientId]) -> Iterator[None]:
        """A block in which what crosses is no training; these clients hold what is shared."""
        parts = self.parts
        parts.wire.phase = "evaluate"
        self.vigilance.pause(paused=True)
        self.recovery.watching = False
        with parts.exchange.explained(number):
            (parts.federation or parts.exchange).settle(clients)
            yield
        self.recovery.watching = True
        self.vigilance.pause(paused=False)
        parts.wire.phase = phase.name

    def _evaluate(
        self, number: int, phase: Phase
    ) -> tuple[dict[str, float], dict[ClientId, dict[str, float]]]:
        evaluator = self.parts.evaluator
        with self._aside(phase, number, evaluator.scored):
            return evaluator.evaluate(number)

    def _copied_state(self) -> dict[str, "Tensor"]:
        return {name: tensor.detach().clone() for name, tensor in state_of(self.parts).items()}

    def _refuse_nonsense(self, number: int, reports: dict[ClientId, dict[str, float]]) -> None:
        """Stop at a loss that is no number, before it spoils tables and checkpoints."""
        for client, report in reports.items():
            losses = report.get("train_loss", 0.0) + report.get("method_loss", 0.0)
            if not math.isfinite(losses):
                raise RunFailedError(
                    f"round {number}: client {client}'s training loss is no longer finite; the run "
                    f"is kept as it was after round {self.kept}. A smaller learning rate "
                    "or train.clip_norm may help"
                )

    def _watch(self, figures: dict[str, float]) -> None:
        stop = self.scenario.stop
        if stop is None or stop.metric not in figures:
            return
        value = -figures[stop.metric] if stop.smaller_is_better else figures[stop.metric]
        if self.progress.best is None or value > self.progress.best + stop.min_delta:
            self.progress.best, self.progress.waited = value, 0
        else:
            self.progress.waited += 1

    def _should_stop(self) -> bool:
        stop = self.scenario.stop
        return stop is not None and self.progress.waited >= stop.patience

    def _checkpoint(self, number: int) -> None:
        config = self.scenario.checkpoint
        last = number == self.rounds or self._should_stop()
        if not last and (config.every == 0 or number % config.every):
            return
        wire = self.parts.wire
        self.progress.bytes_up, self.progress.bytes_down = wire.up, wire.down
        self.progress.tables = self.writer.sizes()
        self.progress.holder = self.parts.exchange.holder
        folder = self.path / CHECKPOINTS
        held = state_of(self.parts)
        held |= {f"vigilance/{name}": tensor for name, tensor in self.vigilance.state().items()}
        held |= {f"recovery/{name}": tensor for name, tensor in self.recovery.state().items()}
        checkpoints.save(folder, held, self.progress, self.digest, config.keep)
        self.kept = number

    def _resume(self) -> bool:
        """Take up the newest whole checkpoint; False where there is none to take up."""
        found = checkpoints.load(self.path / CHECKPOINTS, self.digest)
        if found is None:
            return False
        tensors, self.progress, complaints = found
        self.kept = self.progress.round
        for complaint in complaints:
            self.observer.warn(f"{complaint}; going on from round {self.progress.round}")
        self.writer.rewind(self.progress.tables)
        self.writer.describe(self.scenario.yaml())
        parts = self.parts
        parts.wire.up, parts.wire.down = self.progress.bytes_up, self.progress.bytes_down
        parts.exchange.holder = self.progress.holder
        put_back(parts, tensors)
        self.vigilance.load(below(tensors, "vigilance/"))
        self.recovery.load(below(tensors, "recovery/"))
        return True

    def _note(self, status: str, **more: object) -> None:
        facts: dict[str, object] = {
            "status": status,
            "rounds_done": self.progress.round,
            "rounds": self.rounds,
            "flops": asdict(self.flops),
        }
        self.writer.write_json(SUMMARY, {"name": self.scenario.name, **facts, **more})


def _columns(scenario: Scenario) -> Columns:
    return Columns(
        scenario.figures,
        own_figures=scenario.clients.heads == "per_client",
        methods=bool(scenario.method),
        cohort=not scenario.cohort.whole,
        staleness=scenario.schedule.kind == "asynchronous",
        malicious=bool(scenario.detectors or scenario.clients.malicious),
        signals=Watch.columns(scenario.detectors),
        detections=COLUMNS if scenario.detectors else (),
        reported=[name for method in scenario.method for name in method.reported],
        recovered=Recovery.columns(scenario),
    )
