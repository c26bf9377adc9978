"""From a scenario to a run: prepares data, assembles the parts, drives the phases and rounds.

One round is: every client's turns, the evaluation if one is due, the tables, a checkpoint. Whatever
stops a run (a kill, a full disk, a loss that is no number, Ctrl-C) leaves the last checkpoint and
the tables up to it, from which `resume` goes on as if nothing had happened.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from simsplit.assembly import Assembler, Assembly
from simsplit.data import prepare
from simsplit.errors import RunError, RunFailedError, ScenarioError
from simsplit.methods.base import Phase
from simsplit.packets import ClientId
from simsplit.preflight import refuse_if_too_large
from simsplit.progress import Observer, Plan, Silent
from simsplit.results import CHECKPOINTS, SCENARIO, SUMMARY, SWEEP, Run, checkpoints
from simsplit.results.checkpoints import Progress
from simsplit.results.environment import describe_environment
from simsplit.results.ledger import Ledger, Round
from simsplit.results.summary import summarise
from simsplit.scenario import Scenario


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
    with _threads(scenario.threads):
        experiment = Experiment(scenario, path, observer or Silent())
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

    def __init__(self, scenario: Scenario, path: Path, observer: Observer) -> None:
        self.scenario, self.path, self.observer = scenario, path, observer
        self.device = device_of(scenario.device)
        self.clients = range(scenario.clients.count)
        self.data = prepare(scenario.data, scenario.clients.count, scenario.seed)
        scenario.shapes(self.data.info)
        assembler = Assembler(scenario, self.data, self.device)
        self.estimate = assembler.estimate()
        refuse_if_too_large(self.estimate, self.device)
        self.parts: Assembly = assembler.assemble()
        self.progress = Progress()
        self.digest = checkpoints.digest_of(scenario.identity())
        self.ledger = Ledger(
            path,
            scenario.figures,
            own_figures=scenario.clients.heads == "per_client",
            methods=bool(scenario.method),
        )
        self.writer = self.ledger.writer
        self.phases = self._phases()
        self.rounds = sum(phase.rounds for phase in self.phases)

    def run(self, *, resume: bool) -> None:
        """Train to the end, or until something stops it."""
        resumed = resume and self._resume()
        if not resumed:
            self.writer.start(self.scenario.yaml(), describe_environment(self.device))
        self.parts.exchange.announce(self.clients, counted=not resumed)
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
            )
        )
        try:
            while self.progress.round < self.rounds and not self._should_stop():
                self._round(self.progress.round + 1)
        except KeyboardInterrupt:
            self._note("interrupted")
            raise
        except Exception as error:
            why = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            self._note("failed", reason=why)
            raise
        come_to = summarise(Run.load(self.path), self.scenario.figures)
        self._note("finished", seed=self.scenario.seed, **come_to)

    def _round(self, number: int) -> None:
        started = time.perf_counter()
        phase = self._enter(number)
        wire, exchange = self.parts.wire, self.parts.exchange
        steps = self._steps(phase)
        total = sum(steps.values())
        for done, client in enumerate(self.scenario.schedule.turns(steps), start=1):
            exchange.hand_over(client, number)
            exchange.train(client, number)
            self.observer.step(done, total)
        reports = {client: exchange.report(client) for client in self.clients}
        self._refuse_nonsense(number, reports)
        trained = time.perf_counter()
        figures: dict[str, float] = {}
        own: dict[ClientId, dict[str, float]] = {}
        if self.scenario.evaluate.due(number, self.rounds):
            wire.phase = "evaluate"
            figures, own = self.parts.evaluator.evaluate(number)
            wire.phase = phase.name
        evaluated = time.perf_counter()
        self.progress.elapsed_s += evaluated - started
        round_ = Round(number, phase.name, reports, figures, own)
        row = self.ledger.enter(round_, self.parts.wire)
        self.ledger.time(number, trained - started, evaluated - trained, self.progress.elapsed_s)
        self.progress.round = number
        if phase is self.phases[-1]:  # a warm-up's figures say nothing of when to stop
            self._watch(figures)
        self._checkpoint(number)
        self.observer.round(row, self.progress.elapsed_s)

    def _enter(self, number: int) -> Phase:
        """Tell everyone which phase a round belongs to, and its learning rate."""
        phase, done = self._phase_of(number)
        schedule = self.scenario.train.lr_schedule
        factor = schedule.factor(done + 1, phase.rounds)
        self.parts.wire.phase = phase.name
        self.parts.exchange.phase = phase
        self.parts.server.enter(phase, factor)
        self.parts.pool.call("enter", dict.fromkeys(self.clients, (phase, factor)))
        return phase

    def _steps(self, phase: Phase) -> dict[ClientId, int]:
        return self.scenario.schedule.local(self._steps_per_epoch(phase))

    def _steps_per_epoch(self, phase: Phase) -> dict[ClientId, int]:
        return self.parts.pool.call("steps_per_epoch", dict.fromkeys(self.clients, (phase.source,)))

    def _phases(self) -> list[Phase]:
        """What the methods ask for first, then training proper."""
        main = Phase("train", rounds=0)
        rounds = self.scenario.schedule.num_rounds(self._steps_per_epoch(main))
        wanted = self.parts.pool.ask(self.clients[0], "plan", rounds)
        if self.data.auxiliary is None and any(phase.source == "public" for phase in wanted):
            raise ScenarioError("data.auxiliary", "must be above 0: a method trains on public data")
        if self.scenario.topology == "vanilla" and not all(phase.gradients for phase in wanted):
            raise ScenarioError(
                "topology", "got vanilla; a method has a phase without gradients: use u_shaped"
            )
        return [*wanted, Phase("train", rounds=rounds)]

    def _phase_of(self, number: int) -> tuple[Phase, int]:
        """The phase of a round, and how many of the phase's rounds come before it."""
        done = number - 1
        for phase in self.phases:
            if done < phase.rounds:
                return phase, done
            done -= phase.rounds
        raise AssertionError(f"round {number} is past the last")

    def _refuse_nonsense(self, number: int, reports: dict[ClientId, dict[str, float]]) -> None:
        """Stop at a loss that is no number, before it spoils tables and checkpoints."""
        for client, report in reports.items():
            if report and not math.isfinite(report["train_loss"] + report["method_loss"]):
                raise RunFailedError(
                    f"round {number}: client {client}'s training loss is no longer finite; the run "
                    f"is kept as it was after round {self.progress.round}. A smaller learning rate "
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
        checkpoints.save(folder, self._state(), self.progress, self.digest, config.keep)

    def _state(self) -> dict[str, Tensor]:
        """Every owner's tensors under one name each."""
        state = {f"server/{name}": t for name, t in self.parts.server.learner.state().items()}
        own = self.parts.pool.call("state", dict.fromkeys(self.clients, ()))
        for client, tensors in own.items():
            state |= {f"client/{client}/{name}": tensor for name, tensor in tensors.items()}
        holder = self.parts.exchange.holder or 0
        shared = self.parts.pool.ask(holder, "shared_state")
        return state | {f"holder/{name}": tensor for name, tensor in shared.items()}

    def _resume(self) -> bool:
        """Take up the newest whole checkpoint; False where there is none to take up."""
        found = checkpoints.load(self.path / CHECKPOINTS, self.digest)
        if found is None:
            return False
        tensors, self.progress, complaints = found
        for complaint in complaints:
            self.observer.warn(f"{complaint}; going on from round {self.progress.round}")
        self.writer.rewind(self.progress.tables)
        self.writer.describe(self.scenario.yaml())
        self.parts.wire.up, self.parts.wire.down = self.progress.bytes_up, self.progress.bytes_down
        self.parts.exchange.holder = self.progress.holder
        self.parts.server.learner.load(_below(tensors, "server/"))
        self.parts.pool.call("load", {c: (_below(tensors, f"client/{c}/"),) for c in self.clients})
        self.parts.pool.ask(self.progress.holder or 0, "load_shared", _below(tensors, "holder/"))
        return True

    def _note(self, status: str, **more: object) -> None:
        facts = {"status": status, "rounds_done": self.progress.round, "rounds": self.rounds}
        self.writer.write_json(SUMMARY, {"name": self.scenario.name, **facts, **more})


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def device_of(name: str) -> torch.device:
    """The device that a scenario names; ScenarioError where there is none such."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            raise ScenarioError(
                "device", f"got '{name}', but torch sees {found} GPUs; use cpu or auto"
            )
    return device


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Pin torch's threads for the length of a run."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
